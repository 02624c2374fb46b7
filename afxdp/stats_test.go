//go:build linux

package afxdp

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A goroutine that reads the counters does not get in the owner's way.
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

// How far a snapshot may be behind: not at all after a call that found nothing,
// and some calls in a loop that always finds something.
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
