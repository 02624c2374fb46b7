// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// bpfMaps counts the BPF maps that this process holds open or mapped.
func bpfMaps(t *testing.T) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == "anon_inode:bpf-map" {
			n++
		}
	}
	mapped, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return n + strings.Count(string(mapped), "anon_inode:bpf-map")
}

// settledMaps is bpfMaps once what earlier tests left to the garbage collector,
// which closes maps in its own time, is gone.
func settledMaps(t *testing.T) int {
	t.Helper()
	for n, same := -1, 0; ; time.Sleep(10 * time.Millisecond) {
		runtime.GC()
		now := bpfMaps(t)
		if same++; now != n {
			n, same = now, 0
		}
		if same == 10 {
			return n
		}
	}
}

// Removing a job gives the XDP plane's memory back, whatever the job's kind.
func TestRemovedJobReturnsItsMemory(t *testing.T) {
	plane, err := bpf.Open(bpf.Options{Address: netip.MustParseAddr("192.0.2.1")})
	if errors.Is(err, bpf.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer plane.Close()
	service := control.NewAggregator(t.Context(), control.AggregatorConfig{
		Plane: plane, Stripes: 10, Dense: true, Log: slog.New(slog.DiscardHandler),
		JobMemory: bpf.JobMemory,
	})
	before := settledMaps(t)
	for name, spec := range map[string]*pb.JobSpec{
		"combine":  {Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT, Slots: 65536},
		"fetchadd": {Mode: pb.Mode_MODE_FETCHADD, Arithmetic: pb.Arithmetic_ARITHMETIC_LUT, Slots: 100},
		"sync":     {Mode: pb.Mode_MODE_SYNC, Arithmetic: pb.Arithmetic_ARITHMETIC_FIXED, Slots: 100, Workers: 2},
	} {
		if _, err := service.CreateJob(t.Context(), spec); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		stats, err := service.Stats(t.Context(), &pb.StatsRequest{})
		if err != nil || stats.MemoryBytes != bpf.JobMemory(int(spec.Slots)) || stats.SlotsUsed != uint64(spec.Slots) {
			t.Errorf("%s: statistics %v, %v", name, stats, err)
		}
		if during := bpfMaps(t); during <= before {
			t.Errorf("%s: %d maps with the job, %d without: this test sees nothing", name, during, before)
		}
		if _, err := service.RemoveJob(t.Context(), &pb.RemoveJobRequest{}); err != nil {
			t.Fatal(err)
		}
		if after := bpfMaps(t); after != before {
			t.Errorf("%s: %d maps after the job, %d before", name, after, before)
		}
	}
}

func TestThreadNAPI(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 2})
	ports := []string{bed.Host(0).PortName, bed.Host(1).PortName}
	threaded := func() (values []string) {
		for _, p := range ports {
			v, err := sys.ReadAttr(p, "threaded")
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, v)
		}
		return values
	}
	err := bed.Switch().Do(func() error {
		if err := sys.WriteAttr(ports[1], "threaded", "1"); err != nil { // by another program
			return err
		}
		restore, err := threadNAPI(ports)
		if err != nil {
			return err
		}
		if got := threaded(); got[0] != "1" || got[1] != "1" {
			t.Errorf("threaded is %v, want 1 and 1", got)
		}
		err = restore()
		if got := threaded(); got[0] != "0" || got[1] != "1" {
			t.Errorf("threaded is %v after restoring, want 0 and 1", got)
		}
		if _, err := threadNAPI([]string{ports[0], "absent0"}); err == nil || !strings.Contains(err.Error(), "absent0") {
			t.Errorf("an interface that is not there: %v", err)
		}
		if got := threaded(); got[0] != "0" {
			t.Errorf("threaded is %v after a failure, want 0", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
