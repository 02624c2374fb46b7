// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/libra-ina/libra/wire"
)

const (
	tnaProgram     = "libra_tna.p4"
	tnaDescription = "libra_tna.tables.json"
)

// The description for a control plane of Tofino (bfrt) matches the program.
func TestTablesOfTNABelongToProgram(t *testing.T) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", " ")
	if err := e.Encode(readSource(t, tnaProgram).objects("LibraIngress", "pipe.LibraIngress")); err != nil {
		t.Fatal(err)
	}
	if *record {
		if err := os.WriteFile(tnaDescription, b.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(tnaDescription)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s does not describe %s any more: look at the difference, then run `go test ./p4/program -run '^TestTablesOfTNA' -record`", tnaDescription, tnaProgram)
	}
}

// The reader of the sources finds the minimum of the description: a reader that finds nothing would
// agree with an empty file.
func TestTablesOfTNAAreComplete(t *testing.T) {
	all, err := TNAObjects()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]Object{}
	kinds := map[string]int{}
	for _, o := range all {
		have[o.Name[strings.LastIndex(o.Name, ".")+1:]] = o
		kinds[o.Kind]++
	}
	if kinds[KindRegister] != 23 || kinds[KindCounter] != 6 || kinds[KindTable] != 8 || kinds[KindConstantTable] != 1 {
		t.Errorf("objects by kind: %v", kinds)
	}
	for name, want := range map[string]Object{
		"jobs":    {Name: "pipe.LibraIngress.check.admission.jobs", Size: 64},
		"senders": {Name: "pipe.LibraIngress.check.admission.senders", Size: 128},
		"limits":  {Name: "pipe.LibraIngress.check_pairs.limits", Size: 64},
		"faults":  {Name: "pipe.LibraIngress.check_pairs.faults", Size: 22},
		"seen":    {Name: "pipe.LibraIngress.aggregate.seen", Size: 128 * 1024},
		"slots21": {Name: "pipe.LibraIngress.aggregate.slots21", Size: 2 * 8192},
		"applied": {Name: "pipe.LibraIngress.statistics.applied", Size: 64 * 64},
	} {
		if got := have[name]; got.Name != want.Name || got.Size != want.Size {
			t.Errorf("%s: %s with %d entries, want %s with %d", name, got.Name, got.Size, want.Name, want.Size)
		}
	}
	for name, want := range map[string][2]int{"jobs": {1, 9}, "senders": {5, 3}, "limits": {1, 22}, "faults": {22, 1}} {
		if o := have[name]; len(o.Keys) != want[0] || len(o.Actions) == 0 || len(o.Actions[0].Data) != want[1] {
			t.Errorf("%s has %d keys and %v, want %d keys and %d parameters", name, len(o.Keys), o.Actions, want[0], want[1])
		}
	}
}

// The TNA top passes the compiler's front end without a warning. TNA_INCLUDE_PATH is
// the folder of Tofino's tna.p4.
func TestTNACompiles(t *testing.T) {
	needP4c(t, "p4test")
	include := os.Getenv("TNA_INCLUDE_PATH")
	if _, err := os.Stat(filepath.Join(include, "tna.p4")); include == "" || err != nil {
		t.Skip("TNA_INCLUDE_PATH names no folder with tna.p4: the TNA program is not compiled in this test (docs/p4.md)")
	}
	out, err := exec.Command("p4test", "-D__TARGET_TOFINO__=1", "-I", include, tnaProgram).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Fatalf("p4test: %v\n%s", err, out)
	}
}

// Entry k of table faults is that of lane k: it is the first one that matches if lane k is
// the first with nothing left.
func TestFaultsOfTNANameTheirLane(t *testing.T) {
	text, err := os.ReadFile("tna/pairs.p4")
	if err != nil {
		t.Fatal(err)
	}
	entries := regexp.MustCompile(`(?m)^ +\(([0_, ]+)\): fault\((\d+)\);$`).FindAllStringSubmatch(string(text), -1)
	if len(entries) != wire.Lanes {
		t.Fatalf("%d entries, want one for each lane", len(entries))
	}
	for k, e := range entries {
		keys := slices.Repeat([]string{"_"}, wire.Lanes)
		keys[k] = "0"
		if e[1] != strings.Join(keys, ", ") || e[2] != strconv.Itoa(k) {
			t.Errorf("entry %d is %s", k, e[0])
		}
	}
}

// What is written for lane j names no other lane, and nothing is written for a lane by its number:
// a lane that is off by one is found here, because no switch runs the program.
func TestLanesOfTNAAreMacros(t *testing.T) {
	number := regexp.MustCompile(`\b(?:lane|number|slot|slots|add|read)(\d+)\b`)
	for _, path := range []string{"tna/pairs.p4", "tna/aggregate.p4", "tna/parser.p4", tnaProgram} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		code := commentPattern.ReplaceAllString(string(text), "")
		named := number.FindAllStringSubmatch(code, -1)
		want := 0
		if path == "tna/pairs.p4" { // the parameters of action bound
			want = wire.Lanes
		}
		if len(named) != want {
			t.Errorf("%s names %d lanes by number, want %d: %v", path, len(named), want, named)
			continue
		}
		for j, m := range named {
			if m[0] != "slots"+strconv.Itoa(j) {
				t.Errorf("%s: parameter %d is %s", path, j, m[0])
			}
		}
		if strings.Contains(code, "j + 1") || strings.Contains(code, "j - 1") {
			t.Errorf("%s: a lane reaches for its neighbour", path)
		}
	}
}
