//go:build linux

package bpf

import (
	"testing"

	"github.com/libra-ina/libra/aggregator/vectors"
)

// The vectors say what every data plane must do, without the model's help.
func TestReplaysVectors(t *testing.T) {
	needPrivileges(t)
	files, err := vectors.Load("../aggregator/testdata/vectors")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Run(f.Name, func(t *testing.T) {
			a, err := Open(Options{Address: f.Address})
			if err != nil {
				t.Fatalf("%+v", err)
			}
			defer a.Close()
			for _, r := range f.Routes {
				if err := a.AddRoute(r.MAC, "lo"); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Replay(&device{Aggregator: a}); err != nil {
				t.Error(err)
			}
		})
	}
}
