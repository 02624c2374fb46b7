// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/packer"
)

// psLiteBuilt is set by scripts/pslite.sh: the folder with the libraries and programs that it has
// built.
const psLiteBuilt = "LIBRA_PSLITE"

var psLiteRuns = flag.Int("pslite-runs", 1, "how often each program of ps-lite runs on one host; on several it runs 3 times for 10")

// psLiteKeys is how many keys programs push to.
const psLiteKeys = 10000

// psLiteHotSet has half of the keys of test_kv_app, of test_kv_app_multi_workers and of sums.cc.
func psLiteHotSet(t *testing.T) *packer.HotSet {
	var keys []uint64
	for i := uint64(0); i < psLiteKeys; i += 2 {
		keys = append(keys, math.MaxUint64/psLiteKeys*i, math.MaxUint64/psLiteKeys*i+1)
	}
	hot, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	return hot
}

// pushesIn returns how many hot parts of pushes agents have logged.
func pushesIn(log string) (n int) {
	for _, m := range regexp.MustCompile(` pushes=(\d+) `).FindAllStringSubmatch(log, -1) {
		k, _ := strconv.Atoi(m[1])
		n += k
	}
	return n
}

// ps-lite's own test programs over the van, by 'libra run --pslite', which judges each process:
// without a hot set, with half of the keys hot, and then also with a host for each process, while
// frames are lost, duplicated and reordered.
func TestPSLitePrograms(t *testing.T) {
	built := os.Getenv(psLiteBuilt)
	if built == "" {
		t.Log("the van is tested without ps-lite; make pslite PSLITE=DIR tests it with a tree of ps-lite")
		return
	}
	libra, err := buildLibra()
	if err != nil {
		t.Fatal(err)
	}
	hot := filepath.Join(t.TempDir(), "hot.libra")
	if err := packer.SaveHotSet(hot, psLiteHotSet(t)); err != nil {
		t.Fatal(err)
	}
	preload := []string{"--van", filepath.Join(built, "libra_van.so")}
	lossy := []string{"--hot-set", hot, "--loss", "0.01", "--duplicate", "0.01", "--reorder", "0.01"}
	for _, p := range []struct {
		name      string
		processes int
		args      []string
		arguments []string // of the program
	}{
		{name: "connection", processes: 5, args: preload},
		{name: "simple_app", processes: 5, args: preload},
		{name: "kv_app", processes: 5, args: preload},
		// as ps-lite's script runs it, with a process that is both workers
		{name: "kv_app_multi_workers", processes: 4, args: append([]string{"--customers", "2"}, preload...), arguments: []string{demo.RoleArgument}},
		{name: "kv_app_wrapped", processes: 5},
	} {
		for _, mode := range []struct {
			name string
			args []string
			hot  bool
			root bool
		}{
			{name: "cold"},
			{name: "hot", args: []string{"--hot-set", hot}, hot: true},
			{name: "hosts", args: append([]string{"--namespaces", "--hosts", strconv.Itoa(p.processes)}, lossy...), hot: true, root: true},
		} {
			t.Run(p.name+"/"+mode.name, func(t *testing.T) {
				if mode.root {
					needRoot(t)
				}
				args := slices.Concat([]string{"run", "--pslite", "--backend", "udp", "--servers", "2", "--workers", "2", "-v"}, p.args, mode.args,
					[]string{"--", filepath.Join(built, p.name+"_test")}, p.arguments)
				runs := *psLiteRuns
				if mode.root {
					runs = (3*runs + 9) / 10
				}
				for i := range runs {
					out, err := within(t, limit, libra, args...).CombinedOutput() // it takes a second
					if err != nil {
						t.Fatalf("run %d: %v\n%s", i+1, err, out)
					}
					// two workers, two servers, 50 times
					if pushes := pushesIn(string(out)); mode.hot && strings.HasPrefix(p.name, "kv_app") && pushes < 200 {
						t.Errorf("run %d: the agents had %d pushes\n%s", i+1, pushes, out)
					}
				}
			})
		}
	}
}
