// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// refused runs fn in a namespace with calls that fail, and checks for an error and
// for words of its text.
func refused(t *testing.T, ns *testbed.Namespace, what string, want error, words string, fn func() error, calls ...refuse.Call) {
	t.Helper()
	err := ns.Do(func() error { return refuse.Run(fn, calls...) })
	if !errors.Is(err, want) || err != nil && !strings.Contains(err.Error(), words) {
		t.Errorf("%s: error %q, want %v and %q", what, err, want, words)
	}
}

func setsockopt(level, opt uint32, err unix.Errno) refuse.Call {
	return refuse.Call{Number: unix.SYS_SETSOCKOPT, Args: map[int]uint32{1: level, 2: opt}, Err: err}
}

// getsockoptXDP is a query of a socket that fails with EDOM.
func getsockoptXDP(opt uint32) refuse.Call {
	return refuse.Call{Number: unix.SYS_GETSOCKOPT, Args: map[int]uint32{1: unix.SOL_XDP, 2: opt}, Err: unix.EDOM}
}

func bpfCommand(command uint32, err unix.Errno) refuse.Call {
	return refuse.Call{Number: unix.SYS_BPF, Args: map[int]uint32{0: command}, Err: err}
}

func socketOf(family uint32, err unix.Errno) refuse.Call {
	return refuse.Call{Number: unix.SYS_SOCKET, Args: map[int]uint32{0: family}, Err: err}
}

func TestCallsMeetErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	refused(t, ns, "statistics", unix.EDOM, "getsockopt XDP_STATISTICS: ", func() error { _, err := s.Stats(); return err }, getsockoptXDP(unix.XDP_STATISTICS))
	poll := func() error { _, err := s.Poll(EventRx, time.Minute); return err }
	refused(t, ns, "poll", unix.EDOM, "ppoll: ", poll, refuse.Call{Number: unix.SYS_PPOLL, Err: unix.EDOM})
	// A call that a signal interrupts is repeated.
	refused(t, ns, "interrupted poll", nil, "", func() error {
		ev, err := s.Poll(EventRx, time.Millisecond)
		if ev != 0 {
			t.Errorf("events %b", ev)
		}
		return err
	}, refuse.Call{Number: unix.SYS_PPOLL, Err: unix.EINTR})
	for name, c := range map[string]struct {
		ifname string
		call   refuse.Call
		want   error
	}{
		"queues":            {"a", refuse.Call{Number: unix.SYS_IOCTL, Err: unix.EDOM}, unix.EDOM},
		"queues, no socket": {"a", socketOf(unix.AF_INET, unix.EDOM), unix.EDOM},
	} {
		refused(t, ns, name, c.want, "afxdp: queues of "+c.ifname+": ", func() error {
			rx, tx, err := QueueCounts(c.ifname)
			if rx != 0 || tx != 0 {
				t.Errorf("%d and %d queues", rx, tx)
			}
			return err
		}, c.call)
	}
	// If a driver reports no queues, any queue is tried.
	refused(t, ns, "unknown queues", ErrNoQueue, "queue 7 of a; or", func() error {
		_, err := Open(s.Pool(), Config{Interface: "a", Queue: 7, RxFrames: -1})
		return err
	}, refuse.Call{Number: unix.SYS_IOCTL, Err: unix.EOPNOTSUPP})

	// The map into which the program redirects.
	at := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	b := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: at.XSKMap()})
	refused(t, ns, "leave the map", unix.EDOM, "afxdp: remove queue 0 from the XSKMAP: ", func() error { return b.Reopen(context.Background()) },
		bpfCommand(unix.BPF_MAP_DELETE_ELEM, unix.EDOM))
	if err := b.Reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
}
