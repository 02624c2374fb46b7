//go:build linux

package afxdp

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPreferNode(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	// Every machine has node 0; a kernel without NUMA has no mbind.
	if err := preferNode(mem, 0); err != nil && !errors.Is(err, unix.ENOSYS) {
		t.Errorf("node 0: %v", err)
	}
	if err := preferNode(mem, 64); !errors.Is(err, unix.EINVAL) {
		t.Errorf("node 64: %v, want EINVAL", err)
	}
	if node, err := numaNode("lo"); node != -1 || err != nil {
		t.Errorf("loopback is on node %d, %v", node, err)
	}
}

func TestAddressRange(t *testing.T) {
	for line, want := range map[string]bool{
		"7f0000000000-7f0000200000 rw-p 00000000 00:00 0": true,
		"AnonHugePages:      2048 kB":                     false,
		"VmFlags: rd wr mr mw me ac sd hg":                false,
		"":                                                false,
	} {
		lo, hi, ok := addressRange(line)
		if ok != want || (ok && hi-lo != 2<<20) {
			t.Errorf("%q: %#x-%#x, %v", line, lo, hi, ok)
		}
	}
}

// Steady traffic must not make work for the garbage collector.
func TestHotPathDoesNotAllocate(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	sent := newPackets(t, p.a, 0, 32, 190)
	descs, done := make([]Desc, 64), make([]Frame, 64)
	round := func() {
		if _, err := p.a.Send(sent); err != nil {
			t.Fatal(err)
		}
		if err := p.a.Kick(); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < len(sent); {
			if _, err := p.a.Poll(EventCompletion, -1); err != nil {
				t.Fatal(err)
			}
			n, err := p.a.Completed(done)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		for got := 0; got < len(sent); {
			if _, err := p.b.Poll(EventRx, -1); err != nil {
				t.Fatal(err)
			}
			n, err := p.b.Receive(descs)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.b.Release(descs[:n]); err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations for %d packets", n, len(sent))
	}
}

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			&FrameError{Op: "send", Frame: 3, State: "in flight"},
			"afxdp: frame is not yours: send of frame 3, which is in flight",
		}, {
			&DescError{Desc: Desc{Frame: 3, Off: 256, Len: 7}, Reason: "shorter than an Ethernet header"},
			"afxdp: invalid descriptor: frame 3 offset 256 length 7: shorter than an Ethernet header",
		}, {
			&FeatureError{Feature: "TX metadata", Since: "6.8", Err: unix.EINVAL},
			"afxdp: TX metadata needs Linux 6.8 or later: invalid argument",
		}, {
			&FeatureError{Feature: "zero-copy on a", Since: "5.1", Needs: "a driver", Err: unix.EOPNOTSUPP},
			"afxdp: zero-copy on a needs Linux 5.1 or later and a driver: operation not supported",
		},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
