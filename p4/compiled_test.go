// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
)

var record = flag.Bool("record", false, "note that the compiled files belong to the present sources")

const sumsFile = "compiled/SHA256SUMS"

// The compiled files belong to the sources: a change of one without the other is found here,
// without a compiler.
func TestCompiledBelongsToSources(t *testing.T) {
	var files []string
	for _, pattern := range []string{"program/[^l]*.p4", "program/libra_v1model.p4", "program/v1model/*.p4", "compiled/*.json", "compiled/*.txtpb"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no %s (%v)", pattern, err)
		}
		files = append(files, found...)
	}
	var sums strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.Sum256(text)
		fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(h[:]), name)
	}
	if *record {
		if err := os.WriteFile(sumsFile, []byte(sums.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(sumsFile)
	if err != nil {
		t.Fatal(err)
	}
	if sums.String() != string(want) {
		t.Errorf("the program has changed since it was compiled, or its compiled files have: run `make p4`, which needs p4c\nhashes are\n%s", sums.String())
	}
}

// The sizes that the control plane relies on, and docs/p4.md lists.
func TestSizes(t *testing.T) {
	p, err := DefaultProgram()
	if err != nil {
		t.Fatal(err)
	}
	n, err := resolve(p.info)
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int64{tableJobs: aggregator.MaxJobs, tableSenders: 256, tableHosts: 1024, tableHomes: 1024, tableParticipants: 256} {
		if got := n.tables[name].size; got != size {
			t.Errorf("table %s has room for %d entries, want %d", name, got, size)
		}
	}
	for name, size := range map[string]int64{
		counterEvents: 32, counterJobEvents: aggregator.MaxJobs * jobStride, counterApplied: aggregator.MaxJobs * 2 * bankStride,
		counterSaturated: aggregator.MaxJobs * pairStride, counterSenderEvents: 256 * senderStride, counterSenderApplied: 256 * pairStride, counterCompleted: aggregator.MaxJobs * 2,
	} {
		if got := n.counters[name].size; got != size {
			t.Errorf("counter %s has %d cells, want %d", name, got, size)
		}
	}
	var cells int64
	for _, c := range n.counters {
		cells += c.size
	}
	if cells != 42_016 {
		t.Errorf("the counters have %d cells", cells)
	}
	slots := 0
	for _, r := range p.info.Registers {
		want := int32(2 * rowsOfBank)
		switch r.Preamble.Alias {
		case "seen":
			want = 256 * 1024
		case "rounds":
			want = rowsOfBank
		case "scales":
			want = aggregator.MaxJobs
		default:
			slots++
		}
		if r.Size != want {
			t.Errorf("register %s has %d cells, want %d", r.Preamble.Alias, r.Size, want)
		}
	}
	if slots != 22 {
		t.Errorf("%d registers of slots, want one for each of 22 lanes", slots)
	}
}

// Swapped files are reported by name, with their expected contents.
func TestSwappedFiles(t *testing.T) {
	const device = "compiled/libra_v1model.json"
	_, err := ReadProgram(device, infoFile)
	if err == nil || !strings.Contains(err.Error(), device) || !strings.Contains(err.Error(), "--p4runtime-files") {
		t.Error(err)
	}
}
