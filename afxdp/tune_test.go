// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// settings are the settings of "a" that Tune changes.
type settings struct {
	rx, tx                  int
	defers, flush, threaded string
}

func readSettings(t *testing.T, ns *testbed.Namespace) (s settings) {
	t.Helper()
	err := ns.Do(func() (err error) {
		s.rx, s.tx, err = QueueCounts("a")
		for name, value := range map[string]*string{"napi_defer_hard_irqs": &s.defers, "gro_flush_timeout": &s.flush, "threaded": &s.threaded} {
			v, readErr := sys.ReadAttr("a", name)
			*value, err = v, errors.Join(err, readErr)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tune(t *testing.T, ns *testbed.Namespace, cfg Tuning) (tuned *Tuned, err error) {
	t.Helper()
	err = ns.Do(func() (err error) {
		tuned, err = Tune(t.Context(), "a", cfg)
		return err
	})
	return tuned, err
}

func diffSettings(t *testing.T, ns *testbed.Namespace, want settings) string {
	t.Helper()
	return cmp.Diff(want, readSettings(t, ns), cmp.AllowUnexported(settings{}))
}

func TestTune(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 4})
	before := readSettings(t, ns)
	for name, c := range map[string]struct {
		cfg  Tuning
		want func(s *settings)
	}{
		"nothing":  {Tuning{}, func(*settings) {}},
		"queues":   {Tuning{Queues: 2}, func(s *settings) { s.rx, s.tx = 2, 2 }},
		"deferral": {Tuning{DeferIRQs: 2, FlushTimeout: 200 * time.Microsecond}, func(s *settings) { s.defers, s.flush = "2", "200000" }},
		"largest":  {Tuning{DeferIRQs: 1<<31 - 1, FlushTimeout: 1<<63 - 1}, func(s *settings) { s.defers, s.flush = "2147483647", "9223372036854775807" }},
		"both": {Tuning{Queues: 3, DeferIRQs: 1, FlushTimeout: time.Microsecond}, func(s *settings) {
			*s = settings{3, 3, "1", "1000", s.threaded}
		}},
	} {
		tuned, err := tune(t, ns, c.cfg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := before
		c.want(&want)
		if diff := diffSettings(t, ns, want); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if err := errors.Join(tuned.Close(), tuned.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := diffSettings(t, ns, before); diff != "" {
			t.Errorf("%s, after Close (-want +got):\n%s", name, diff)
		}
	}
	// veth has NAPI, and so threads, only with a program.
	attach(t, ns, AttachConfig{Interface: "a", Match: MatchAll()})
	tuned, err := tune(t, ns, Tuning{ThreadedNAPI: true, DeferIRQs: 1})
	if err != nil {
		t.Fatal(err)
	}
	want := before
	want.threaded, want.defers = "1", "1"
	if diff := diffSettings(t, ns, want); diff != "" {
		t.Errorf("threads (-want +got):\n%s", diff)
	}
	if err := tuned.Close(); err != nil {
		t.Error(err)
	}
	if diff := diffSettings(t, ns, before); diff != "" {
		t.Errorf("threads, after Close (-want +got):\n%s", diff)
	}
}

// A failed call changes nothing, and restores its own earlier changes.
func TestTuneThatFails(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 4})
	before := readSettings(t, ns)
	for name, c := range map[string]struct {
		cfg   Tuning
		want  error
		words string
		calls []refuse.Call
	}{
		"too many queues": {Tuning{Queues: 5}, ErrNoQueue, "a has at most 4 queues", nil},
		"far too many":    {Tuning{Queues: 1<<32 + 1}, ErrNoQueue, "a has at most 4 queues", nil},
		"negative":        {Tuning{DeferIRQs: -1}, ErrConfig, "Tuning.DeferIRQs -1 is negative", nil},
		"too patient":     {Tuning{Queues: 2, DeferIRQs: 1 << 31}, ErrConfig, "Tuning.DeferIRQs 2147483648 is more than the kernel accepts; the largest value is 2147483647", nil},
		"negative spread": {Tuning{Spread: -1}, ErrConfig, "Tuning.Spread -1 is negative", nil},
		"spread too far":  {Tuning{Queues: 2, Spread: 3}, ErrNoQueue, "a has 2 receive queues in use", nil},
		"no table":        {Tuning{Queues: 3, Spread: 2}, errors.ErrUnsupported, "Tuning.Spread on a needs a card that spreads", nil},
		"no rules":        {Tuning{Queues: 3, Steer: []Steering{{MatchUDP(9000), 1}}}, errors.ErrUnsupported, "Tuning.Steer on a needs a card that has such rules", nil},
		"queue beyond":    {Tuning{Queues: 3, Steer: []Steering{{MatchUDP(9000), 3}}}, ErrNoQueue, "a has 3 receive queues in use, Tuning.Steer names queue 3", nil},
		"negative queue":  {Tuning{Steer: []Steering{{MatchUDP(9000), -1}}}, ErrNoQueue, "", nil},
		"no match":        {Tuning{Steer: []Steering{{}}}, ErrConfig, "no Match", nil},
		"no such rule":    {Tuning{Queues: 3, Steer: []Steering{{MatchUDP(9000).Not(), 1}}}, ErrConfig, "without Not and ranges", nil},
		"driver has none": {Tuning{Queues: 1}, errors.ErrUnsupported, "a driver that reports its queues", []refuse.Call{{Number: unix.SYS_IOCTL, Err: unix.EOPNOTSUPP}}},
		"reports nothing": {Tuning{Spread: 2}, errors.ErrUnsupported, "Tuning.Spread on a needs a card that spreads", []refuse.Call{{Number: unix.SYS_IOCTL, Err: unix.EOPNOTSUPP}}},
		"nor for rules":   {Tuning{Steer: []Steering{{MatchUDP(9000), 7}}}, errors.ErrUnsupported, "Tuning.Steer on a needs a card that has such rules", []refuse.Call{{Number: unix.SYS_IOCTL, Err: unix.EOPNOTSUPP}}},
		"no NAPI":         {Tuning{Queues: 2, DeferIRQs: 1, ThreadedNAPI: true}, errors.ErrUnsupported, "set threaded to 1 of a needs", nil},
		"no privilege":    {Tuning{Queues: 2, DeferIRQs: 1}, ErrPermission, "CAP_SYS_ADMIN", []refuse.Call{{Number: unix.SYS_FSOPEN, Err: unix.EPERM}}},
	} {
		refused(t, ns, name, c.want, c.words, func() error {
			_, err := Tune(context.Background(), "a", c.cfg)
			return err
		}, c.calls...)
		if diff := diffSettings(t, ns, before); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for _, name := range []string{"nosuch", "a\x00", ""} {
		for call, err := range map[string]error{
			"Tune":        ns.Do(func() error { _, err := Tune(t.Context(), name, Tuning{}); return err }),
			"QueueCounts": ns.Do(func() error { _, _, err := QueueCounts(name); return err }),
		} {
			if !errors.Is(err, ErrInterfaceGone) || !strings.Contains(err.Error(), "no such interface: "+strconv.Quote(name)) {
				t.Errorf("%s(%q): %v", call, name, err)
			}
		}
	}
}

// An error for missing queues names the reason: a program on the interface when queues are removed,
// and a program that is to be attached.
func TestTooFewQueues(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 4})
	native := func() (err error) {
		return ns.Do(func() error {
			a, err := Attach(AttachConfig{Interface: "a", Mode: AttachNative, Match: MatchUDP(9000)})
			if err == nil {
				t.Cleanup(func() { _ = a.Close() })
			}
			return err
		})
	}
	tuned, err := tune(t, ns, Tuning{Queues: 1})
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, native(), ErrFewQueues)
	if err := tuned.Close(); err != nil {
		t.Fatal(err)
	}
	if err := native(); err != nil {
		t.Fatal(err)
	}
	_, err = tune(t, ns, Tuning{Queues: 1})
	wantErr(t, err, ErrFewQueues)
	if want := "set 1 queues of a, which has 4 to receive and 4 to send"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if s := readSettings(t, ns); s.rx != 4 {
		t.Errorf("a refused Tune left %d queues", s.rx)
	}
}

// Close does not touch values that another process has set since, nor an interface that was
// deleted.
func TestTuneOfOthersStays(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 4})
	tuned, err := tune(t, ns, Tuning{Queues: 2, DeferIRQs: 7})
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.SetDeviceAttr("a", "napi_defer_hard_irqs", "3"); err != nil {
		t.Fatal(err)
	}
	if err := tuned.Close(); err != nil {
		t.Fatal(err)
	}
	if s := readSettings(t, ns); s.defers != "3" || s.rx != 4 {
		t.Errorf("%+v", s)
	}
	if tuned, err = tune(t, ns, Tuning{Queues: 2}); err != nil {
		t.Fatal(err)
	}
	other, err := tune(t, ns, Tuning{Queues: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := tuned.Close(); err != nil {
		t.Fatal(err)
	}
	if s := readSettings(t, ns); s.rx != 3 {
		t.Errorf("another one's 3 queues became %d", s.rx)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if tuned, err = tune(t, ns, Tuning{DeferIRQs: 7}); err != nil {
		t.Fatal(err)
	}
	if err := ns.Delete("a"); err != nil {
		t.Fatal(err)
	}
	if err := tuned.Close(); err != nil {
		t.Error(err)
	}
}

// Queues are removed when the sockets on them have been closed, however long the kernel takes to
// release them.
func TestTuneTakesQueuesOfClosedSockets(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 4})
	shut := func(queues int) {
		t.Helper()
		s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "a", Queue: queues - 1, RxFrames: -1})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	shut(4)
	fewer, err := tune(t, ns, Tuning{Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	more, err := tune(t, ns, Tuning{Queues: 3})
	if err != nil {
		t.Fatal(err)
	}
	shut(3)
	if err := errors.Join(more.Close(), fewer.Close()); err != nil {
		t.Error(err)
	}
	if got := readSettings(t, ns); got.rx != 4 {
		t.Errorf("%+v", got)
	}
}

// A link that does not come up is reported, and the settings are restored.
func TestTuneAwaitsTheLink(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	if err := ns.SetUp("a", false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	index := 0
	err := ns.Do(func() error {
		tuned, err := Tune(ctx, "a", Tuning{DeferIRQs: 1}) // was down before
		if err != nil {
			return err
		}
		index = tuned.ifindex
		return tuned.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, ns.Do(func() error { return awaitLink(ctx, index) }), ErrLinkDown)
	if err := ns.SetUp("a", true); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error { return awaitLink(t.Context(), index) }); err != nil {
		t.Error(err)
	}
	wantErr(t, ns.Do(func() error { return awaitLink(t.Context(), 1<<20) }), ErrInterfaceGone)
}
