// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/aggregator/vectors"
)

//go:generate go test -run ^TestVectorsAreCurrent -update

var update = flag.Bool("update", false, "rewrite the vectors in testdata")

const vectorsDir = "testdata/vectors"

// newDevice returns a model that a file of vectors can be played on.
func newDevice(t *testing.T, f *vectors.File) conformance.Device {
	t.Helper()
	m, err := aggregator.NewModel(aggregator.Config{Address: f.Address})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range f.Routes {
		if err := m.AddRoute(r.MAC, r.Port); err != nil {
			t.Fatal(err)
		}
	}
	return conformance.ModelDevice(m)
}

// TestVectorsAreCurrent compares the files with what the model does now.
func TestVectorsAreCurrent(t *testing.T) {
	files := make(map[string]bool)
	for _, f := range vectorFiles() {
		if err := f.Record(newDevice(t, f)); err != nil {
			t.Fatal(err)
		}
		want, err := json.MarshalIndent(f, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, '\n')
		path := filepath.Join(vectorsDir, f.Name+".json")
		files[path] = true
		if *update {
			if err := os.WriteFile(path, want, 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v; `go generate ./aggregator` writes the vectors", err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from what the model does: if that is meant to change, run `go generate ./aggregator` (-file +model):\n%s",
				path, cmp.Diff(string(got), string(want)))
		}
	}
	left, err := filepath.Glob(vectorsDir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if !files[path] {
			t.Errorf("%s belongs to no case; delete it", path)
		}
	}
}

// TestVectorsReplay goes by the files alone, as another implementation would.
func TestVectorsReplay(t *testing.T) {
	files, err := vectors.Load(vectorsDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := f.Replay(newDevice(t, f)); err != nil {
			t.Error(err)
		}
	}
}

// A replay is worth what it notices.
func TestVectorsReplayNoticesEveryDifference(t *testing.T) {
	files, err := vectors.Load(vectorsDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		for i := range f.Steps {
			s := &f.Steps[i]
			switch {
			case s.Frame != nil && len(s.Frame.Answer) > 0:
				last := &s.Frame.Answer[len(s.Frame.Answer)-1]
				*last ^= 1
				if f.Replay(newDevice(t, f)) == nil {
					t.Errorf("%s: another answer in step %d goes unnoticed", f.Name, i)
				}
				*last ^= 1
			case s.Harvest != nil:
				s.Harvest.Slots[0]++
				if f.Replay(newDevice(t, f)) == nil {
					t.Errorf("%s: another sum in step %d goes unnoticed", f.Name, i)
				}
				s.Harvest.Slots[0]--
				if s.Harvest.Slots[0] == 0 {
					delete(s.Harvest.Slots, 0)
				}
			}
		}
		f.End.Aggregator["Passed"]++
		if f.Replay(newDevice(t, f)) == nil {
			t.Errorf("%s: another counter goes unnoticed", f.Name)
		}
	}
}
