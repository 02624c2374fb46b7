// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
)

// lossy reports losses of frames that it has not lost.
type lossy struct{ link.Link }

func (l lossy) Stats() link.Stats {
	s := l.Link.Stats()
	s.Overrun, s.NoRoom = 31, 47
	return s
}

// A machine of its own is told what its fields are there for: the plane of a switch, the store of a
// server, when it may write a checkpoint, and when a worker's frames are acknowledged. Frames that
// its links count as lost are in the server's result.
func TestMachineIsTold(t *testing.T) {
	c := newCluster(t, 1)
	var planes, stores, flushed, turns atomic.Int32
	m := Machine{
		Plane:   func(p aggregator.Plane) aggregator.Plane { planes.Add(1); return p },
		Store:   func(*ps.Store) { stores.Add(1) },
		Flushed: func() { flushed.Add(1) },
		Turn:    func(string) { turns.Add(1) },
		Link: func(at netip.AddrPort) (link.Link, error) {
			l, err := link.OpenUDP(at)
			return lossy{l}, err
		},
	}
	ended := make(chan error, 1)
	go func() {
		s, err := RunServer(t.Context(), Env{Config: c, Machine: m, Log: testLog(t)})
		if err == nil && (s.Overrun != 31 || s.LostAnswers != 47) {
			t.Errorf("the server reports %d and %d lost frames", s.Overrun, s.LostAnswers)
		}
		ended <- err
	}()
	ready := make(chan struct{})
	service := make(chan error, 1)
	ctx := bedtest.NewContext(t)
	go func() {
		service <- RunSwitch(ctx, Env{Config: c, Machine: m, Log: testLog(t), Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-service:
		t.Fatal(err)
	}
	w, err := RunWorker(t.Context(), Env{Config: c, Machine: m, Log: testLog(t)}, WorkerOptions{ID: 1})
	if err := errors.Join(err, <-ended); err != nil {
		t.Fatal(err)
	}
	if planes.Load() != 1 || stores.Load() != 1 || flushed.Load() < int32(w.Steps) || turns.Load() == 0 {
		t.Errorf("called for %d planes, %d stores, %d flushes in %d steps, and %d turns", planes.Load(), stores.Load(), flushed.Load(), w.Steps, turns.Load())
	}
}

// A step that ends by frames is committed, counted and, where it is due, followed by a checkpoint,
// as one that ends at the service.
func TestStepThatEndsByFrames(t *testing.T) {
	s := newServer(t, true)
	s.hot, s.env.Config.Server.CheckpointSteps = smallHotSet(t), 2
	services := s.serviceConfig(t.Context(), 2, nil)
	for step := range uint64(4) {
		var got control.Sums
		if err := s.loop.Do(t.Context(), func() {
			if err := s.store.Push([]uint64{90, 91}, []float32{1, 2, 3, float32(step)}); err != nil {
				t.Error(err)
			}
			services.ReduceHere(step, func(sums control.Sums, _ *control.DroppedError) {
				got = control.Sums{Keys: slices.Clone(sums.Keys), Rows: slices.Clone(sums.Rows)}
			})
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Keys, []uint64{90, 91}) || !slices.Equal(got.Rows, []float32{1, 2, 3, float32(step)}) {
			t.Errorf("step %d has the sums %+v", step, got)
		}
		if s.progress.firstStep(1) != step+1 || s.result.Steps != step+1 || s.version != step+1 {
			t.Errorf("after step %d, %d is due, and %d are counted", step, s.progress.firstStep(1), s.result.Steps)
		}
		due := len(s.due) == 1
		if due {
			<-s.due
		}
		if due != (step%2 == 1) {
			t.Errorf("after step %d a checkpoint is due: %v", step, due)
		}
	}
}
