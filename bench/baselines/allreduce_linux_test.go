// SPDX-License-Identifier: Apache-2.0

package baselines

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// received returns how many bytes a host has received.
func received(t *testing.T, h *testbed.Node) (n int) {
	t.Helper()
	if err := h.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		_, counters, _ := strings.Cut(string(text), h.Interface+":")
		n, err = strconv.Atoi(strings.Fields(counters)[0])
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// Ranks on hosts of a bed add over its lines: each receives sums at least.
func TestRanksOfMPIRunOnHosts(t *testing.T) {
	mpi, err := BuildMPI(t.Context())
	if errors.Is(err, ErrBuild) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := mpi.Close(); err != nil {
			t.Error(err)
		}
	}()
	o := Operations{Workers: 3, Width: 100_000, Number: 2}
	bed := bedtest.New(t, testbed.Config{Hosts: o.Workers, StaticARP: true})
	took, err := RunMPIOn(t.Context(), mpi, o, bed)
	if err != nil || took.P1 <= 0 || took.P99 < took.P50 || took.P50 < took.P1 || took.Mean <= 0 {
		t.Fatalf("%+v, %v", took, err)
	}
	for _, h := range bed.Hosts() {
		if n, least := received(t, h), o.Number*4*o.Width; n < least {
			t.Errorf("%s has received %d bytes, less than %d", h.Name, n, least)
		}
	}
}
