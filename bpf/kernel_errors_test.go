//go:build linux

package bpf

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/refuse"
)

// refuseBPF is a command of the bpf system call that fails.
func refuseBPF(command uint32, err unix.Errno) refuse.Call {
	return refuse.Call{Number: unix.SYS_BPF, Args: map[int]uint32{0: command}, Err: err}
}

// checkErrno checks for the error of a system call that was made to fail.
func checkErrno(t *testing.T, what string, err error, want unix.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func mustDup(t *testing.T, fd int) int {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// countDescriptors counts this process's, and one more.
func countDescriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// withDescriptors runs fn while so many descriptors are free, and no more.
func withDescriptors(t *testing.T, free int, fn func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	limit := old
	limit.Cur = min(limit.Cur, 1024)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	var taken []int
	for {
		fd, err := unix.Dup(0)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	if len(taken) < free {
		t.Fatal("no descriptors can be taken: this test sees nothing")
	}
	for _, fd := range taken[:free] {
		_ = unix.Close(fd)
	}
	fn()
	for _, fd := range taken[free:] {
		_ = unix.Close(fd)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
}

// exhaust makes something with ever more free descriptors until that succeeds. With
// fewer it has to fail, each time with the kernel's error behind the prefix, and keep
// none.
func exhaust(t *testing.T, prefix string, make func() (undo func() error, err error)) {
	t.Helper()
	undo, err := make() // what is made but once is there now
	if err != nil {
		t.Fatal(err)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	before := countDescriptors(t)
	for free := range 100 {
		withDescriptors(t, free, func() { undo, err = make() })
		switch {
		case err == nil && free == 0:
			t.Error("succeeds without a descriptor: this test sees nothing")
		case err == nil:
			if err := undo(); err != nil {
				t.Errorf("with %d descriptors: %v", free, err)
			}
		case !isExhaustion(err) || !strings.HasPrefix(err.Error(), prefix):
			t.Errorf("with %d descriptors: %v", free, err)
		}
		if now := countDescriptors(t); now != before {
			t.Fatalf("with %d free descriptors, %v: %d are open afterwards, %d before", free, err, now, before)
		}
		if err == nil {
			return
		}
	}
	t.Fatal("fails with any number of descriptors:", err)
}

// isExhaustion allows for package ebpf, which looks for the reason of some failures
// with maps of its own. When they fail too, it takes the kernel for too old.
func isExhaustion(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, ebpf.ErrNotSupported)
}

func TestOpenWithoutDescriptors(t *testing.T) {
	needPrivileges(t)
	exhaust(t, "bpf: ", func() (func() error, error) {
		a, err := Open(Options{Address: conformance.Aggregator.IP})
		return a.Close, err
	})
}

func TestOpenSteerWithoutDescriptors(t *testing.T) {
	inNamespace(t, 1, func() {
		exhaust(t, "", func() (func() error, error) {
			s, err := OpenSteer(SteerOptions{Interface: "host0", Mode: afxdp.AttachNative})
			return s.Close, err
		})
	})
}

func TestAddJobWithoutDescriptors(t *testing.T) {
	d := open(t)
	for _, job := range []aggregator.JobConfig{
		{ID: 5, Slots: 30},
		{ID: 6, Slots: 30, Mode: aggregator.Sync, Workers: 2},
	} {
		exhaust(t, "bpf: job ", func() (func() error, error) {
			return func() error { return d.RemoveJob(job.ID) }, d.AddJob(job)
		})
	}
}

func TestAttachWithoutDescriptors(t *testing.T) {
	inNamespace(t, 1, func() {
		d := open(t)
		exhaust(t, "", func() (func() error, error) {
			return func() error { return d.Detach("port0") }, d.Attach("port0", afxdp.AttachNative)
		})
		if id := programOn(t, "port0"); id != 0 {
			t.Errorf("program %d is on the interface", id)
		}
	})
}

// What cannot be counted does not keep the aggregator from working, and is told.
func TestFailuresCannotBeCounted(t *testing.T) {
	d := open(t)
	var f failures
	exhaust(t, "frames that the kernel did not send are not counted: ", func() (func() error, error) {
		f = failures{}
		f.start(d.objects.Aggregate)
		if (f.links == nil) != (f.err != nil) {
			t.Errorf("%d links, error %v", len(f.links), f.err)
		}
		return f.close, f.err
	})
	for name, c := range map[string]refuse.Call{
		"id of the program": refuseBPF(unix.BPF_OBJ_GET_INFO_BY_FD, unix.EDOM),
		"load":              refuseBPF(unix.BPF_PROG_LOAD, unix.EDOM),
		"attach":            refuseBPF(unix.BPF_RAW_TRACEPOINT_OPEN, unix.EDOM),
	} {
		f = failures{}
		if err := refuse.Run(func() error { f.start(d.objects.Aggregate); return nil }, c); err != nil {
			t.Fatal(err)
		}
		checkErrno(t, name, f.err, unix.EDOM)
	}

	inNamespace(t, 1, func() {
		d.failures.err = errors.New("reason")
		if err := d.Attach("port0", afxdp.AttachNative); err != nil {
			t.Fatal(err)
		}
		if err := d.CountsFailures(); err == nil || err.Error() != "reason" {
			t.Errorf("error %v", err)
		}
		c, err := d.Counters()
		if err != nil || c.UnsentAnswers != 0 || c.UnsentRedirects != 0 {
			t.Errorf("counters %+v, %v", c, err)
		}
		if err := d.Detach("port0"); err != nil {
			t.Error(err)
		}
	})
}
