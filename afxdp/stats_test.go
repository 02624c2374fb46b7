// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// A goroutine that reads the counters does not disturb the owner.
func TestSnapshotBesideTheOwner(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		var last Stats
		for {
			st, err := p.b.Snapshot()
			if err != nil || st.RxReceived < last.RxReceived {
				t.Errorf("%+v after %+v, %v", st, last, err)
			}
			last = st
			select {
			case <-stop:
				done <- err
				return
			case <-time.After(10 * time.Microsecond):
			}
		}
	}()
	for i := range uint64(50) {
		if err := p.a.Pool().Free(transmit(t, p.a, newPackets(t, p.a, i*16, 16, 60))...); err != nil {
			t.Fatal(err)
		}
		receive(t, p.b, 16) // ErrConcurrentUse ends the test
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want, err := p.b.Stats()
	if err != nil || want.RxReceived != 800 {
		t.Fatalf("%+v, %v", want, err)
	}
	check := func(when string) {
		t.Helper()
		got, err := p.b.Snapshot()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", when, err, diff)
		}
	}
	check("open")
	if err := p.b.Close(); err != nil {
		t.Fatal(err)
	}
	check("closed")
}

// How far a snapshot may be behind: not at all after a call that found nothing, and a few calls in
// a loop that always finds something.
func TestSnapshotIsPublished(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 128, ring: 128})
	if _, err := s.Refill(128); err != nil {
		t.Fatal(err)
	}
	receive := func() int {
		n, err := s.Receive(make([]Desc, 1))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range publishEvery + 1 {
		k.deliver(uint64(i), 0)
	}
	snapshot := func(want uint64) {
		t.Helper()
		if st, err := s.Snapshot(); st.RxReceived != want || err != nil {
			t.Errorf("%d received, want %d, %v", st.RxReceived, want, err)
		}
	}
	for range publishEvery + 1 {
		receive()
	}
	snapshot(publishEvery)
	if n := receive(); n != 0 {
		t.Fatal(n)
	}
	snapshot(publishEvery + 1)
}

// The counters of all kernel sockets of a Socket are added up.
func TestKernelStatsAreAddedUp(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	p.b.past = xdpStatistics{RxDropped: 1, RxInvalidDescs: 2, TxInvalidDescs: 3, RxRingFull: 4, RxFillRingEmptyDescs: 5, TxRingEmptyDescs: 6}
	before, err := getStatistics(p.b.FD())
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		st, err := p.b.Snapshot()
		want := KernelStats{
			RxDropped: 1 + before.RxDropped, RxInvalidDescs: 2 + before.RxInvalidDescs, TxInvalidDescs: 3 + before.TxInvalidDescs,
			RxRingFull: 4 + before.RxRingFull, FillRingEmpty: 5 + before.RxFillRingEmptyDescs, TxRingEmpty: 6 + before.TxRingEmptyDescs,
		}
		if diff := cmp.Diff(want, st.Kernel); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", when, err, diff)
		}
	}
	check("open")
	// Reopening keeps the counts of the replaced socket.
	bad := newPackets(t, p.a, 0, 1, 60)
	p.a.tx.descs[0] = xdpDesc{Addr: 1 << 40, Len: 60} // refused by the kernel
	p.a.tx.submitEntries(1)
	_ = p.a.Kick()
	if err := p.a.Pool().Free(bad[0].Frame); err != nil {
		t.Fatal(err)
	}
	st, err := p.a.Stats()
	if err != nil || st.Kernel.TxInvalidDescs != 1 {
		t.Fatalf("%+v, %v", st.Kernel, err)
	}
	if err := p.ns.Do(func() error { return p.a.Reopen(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if st, err = p.a.Stats(); err != nil || st.Kernel.TxInvalidDescs != 1 {
		t.Errorf("after Reopen: %+v, %v", st.Kernel, err)
	}
	if err := p.a.Close(); err != nil {
		t.Fatal(err)
	}
	if st, err = p.a.Snapshot(); err != nil || st.Kernel.TxInvalidDescs != 1 {
		t.Errorf("after Close: %+v, %v", st.Kernel, err)
	}
	if err := p.b.Close(); err != nil {
		t.Fatal(err)
	}
	check("closed")
}

// Every counter is published in its field.
func TestCountersArePublished(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 8, ring: 8})
	want := Counters{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	s.in.count, s.out.count = want, want
	s.in.publishCounters()
	s.out.publishCounters()
	for _, n := range want.fields() {
		*n *= 2
	}
	st, err := s.Snapshot()
	if diff := cmp.Diff(want, st.Counters); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// A method that finds nothing publishes, and only then.
	for name, c := range map[string]struct {
		half *half
		call func() error
	}{
		"Completed": {&s.out, func() error { _, err := s.Completed(make([]Frame, 1)); return err }},
		"Receive":   {&s.in, func() error { _, err := s.Receive(make([]Desc, 1)); return err }},
	} {
		c.half.count.TxKicks++
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
		if got := c.half.published.values[3].Load(); got == c.half.count.TxKicks {
			t.Errorf("%s publishes what is known", name)
		}
		c.half.published.behind = 1
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
		if got := c.half.published.values[3].Load(); got != c.half.count.TxKicks || c.half.published.behind != 0 {
			t.Errorf("%s: %d published, want %d", name, got, c.half.count.TxKicks)
		}
	}
}

// All frames that Completed returns are counted, and visible when none is left in flight: also for
// sockets that share a queue, and for frames returned because the socket was reopened.
func TestCompletedFramesAreCounted(t *testing.T) {
	check := func(t *testing.T, s *Socket, want uint64) {
		t.Helper()
		if st, err := s.Snapshot(); st.TxSubmitted != want || st.TxCompleted != want || err != nil {
			t.Errorf("%d sent and %d completed, want %d of both, %v", st.TxSubmitted, st.TxCompleted, want, err)
		}
	}
	t.Run("shared", func(t *testing.T) {
		n := newSharedNet(t, 1024, 2)
		s := open(t, n.ns, newPool(t, n.umem, 512), n.config(0))
		for i := range uint64(3) {
			if err := s.Pool().Free(transmit(t, s, newPackets(t, s, i, 1, 100))...); err != nil {
				t.Fatal(err)
			}
			check(t, s, i+1)
		}
	})
	t.Run("reopened", func(t *testing.T) {
		ns := newNet(t, testbed.VethConfig{})
		s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "a"})
		if n, err := s.Send(newPackets(t, s, 1, 10, 100)); n != 10 || err != nil {
			t.Fatal(n, err)
		}
		if err := ns.Do(func() error { return s.Reopen(t.Context()) }); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Completed(make([]Frame, 64)); n != 10 || err != nil {
			t.Fatal(n, err)
		}
		check(t, s, 10)
	})
}
