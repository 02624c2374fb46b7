// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// stepFeed hands the pushes of a step over, and ends the step in the same turn.
type stepFeed struct {
	w    *Worker
	next chan []*Request // of a step
	step uint64
	ends chan error
	open int // pushes that are not settled
	errs []error
}

func (f *stepFeed) Settled(err error) {
	f.open--
	f.errs = append(f.errs, err)
}

func (f *stepFeed) Turn() bool {
	select {
	case requests := <-f.next:
		for _, r := range requests {
			r.Owner = f
			f.open++
			f.w.Hand(r)
		}
		s := &Step{Number: f.step}
		s.Done = func(err error) {
			if keys, sums := stepSums(s.Number, 40); err == nil && (!slices.Equal(s.Keys, keys) || !slices.Equal(s.Sums, sums)) {
				err = errors.New("wrong sums")
			}
			f.ends <- err
		}
		f.step++
		f.w.EndStep(s)
		return true
	default:
		return false
	}
}

func (f *stepFeed) Sleep() bool { return len(f.next) == 0 }
func (f *stepFeed) Awake()      {}
func (f *stepFeed) End(error)   {}

// take ends a step with pushes, and returns what the worker is told.
func (f *stepFeed) take(t *testing.T, requests ...*Request) error {
	t.Helper()
	f.next <- requests
	f.w.Poke()
	select {
	case err := <-f.ends:
		return err
	case <-deadline(t).Done():
		t.Fatal("the step has no end")
		return nil
	}
}

func feedSteps(t *testing.T, w *Worker) *stepFeed {
	t.Helper()
	f := &stepFeed{w: w, next: make(chan []*Request, 1), ends: make(chan error, 1)}
	if err := w.Attach(t.Context(), f, -1); err != nil {
		t.Fatal(err)
	}
	return f
}

// When a step is over, server and aggregator have all that was pushed in it, though no worker waits for an answer before it
// ends the step; with the sums, what was pushed for the server is settled.
func TestStepFollowsItsPushes(t *testing.T) {
	const workers, steps = 3, 30
	for name, faults := range map[string]link.Faults{"": {}, "faults": harsh} {
		t.Run(name, func(t *testing.T) {
			m := &meeting{workers: workers, arrived: map[uint16]wire.StepEnd{}}
			o := clusterOptions{workers: workers, faults: faults, flow: hasty, arrive: m.arrive}
			c := newCluster(t, memFabric(t, o), o)
			want := newLedger()
			var (
				banks  [][]int64
				pushed [steps]map[uint64][]int64 // until the end of a step
				todo   [workers][steps][]*Request
			)
			rng := rand.New(rand.NewPCG(17, 4))
			for step := range steps {
				for w := range workers {
					for range rng.IntN(4) {
						keys, grads := batch(rng, rng.IntN(3000))
						if step%3 == 0 { // as of a job without a hot set
							for i := range keys {
								keys[i] |= 1 << 40
							}
						}
						want.addBatch(keys, grads)
						todo[w][step] = append(todo[w][step], &Request{Keys: keys, Values: grads})
					}
				}
				pushed[step] = want.total(c.hot)
			}
			m.over = func(step uint64) {
				bank, err := c.plane.Swap(testJob)
				if err != nil {
					t.Error(err)
				}
				banks = append(banks, slices.Clone(bank.Slots))
				if err := c.plane.Clear(bank); err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(pushed[step], c.ledger.total(c.hot, banks...)); diff != "" {
					t.Errorf("step %d is over: %d differences", step, len(diff))
				}
				m.next()
				keys, sums := stepSums(step, 40)
				c.server.GiveSums(step, keys, sums)
			}
			var group sync.WaitGroup
			for i, w := range c.workers {
				group.Go(func() {
					f := feedSteps(t, w)
					for step := range steps {
						if err := f.take(t, todo[i][step]...); err != nil {
							t.Errorf("step %d: %v", step, err)
						}
						if err := w.Do(t.Context(), func() {
							if f.open > 0 || slices.ContainsFunc(f.errs, func(err error) bool { return err != nil }) {
								t.Errorf("step %d: %d pushes are not settled, %v", step, f.open, f.errs)
							}
						}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			group.Wait()
		})
	}
}

// A step of which a gradient was refused does not end in frames, and later ones do: whether the worker learns of the
// refusal before or after its STEP frame has left, or has refused the gradient itself.
func TestStepOfARefusedPush(t *testing.T) {
	refusal := wire.Refusal{Code: wire.CodeNotFinite}
	for name, wants := range map[string]struct {
		refuses bool // the server
		request *Request
		want    error
	}{
		"by the server":              {true, &Request{Keys: []uint64{5}, Values: []float32{1, 2, 3}}, refusal},
		"by the packer":              {false, &Request{Keys: []uint64{5}, Values: []float32{1, 2}}, nil},
		"by the server, one of many": {true, &Request{Keys: make([]uint64, 9000), Values: make([]float32, 9000*testDim)}, refusal},
	} {
		t.Run(name, func(t *testing.T) {
			m := &meeting{workers: 1, arrived: map[uint16]wire.StepEnd{}}
			o := clusterOptions{workers: 1, arrive: m.arrive}
			c := newCluster(t, memFabric(t, o), o)
			over := 0
			m.over = func(step uint64) {
				over++
				m.next()
				keys, sums := stepSums(step, 40)
				c.server.GiveSums(step, keys, sums)
			}
			refuses := wants.refuses
			c.ledger.refuse = func(wire.Rows) error {
				if refuses {
					refuses = false
					return refusal
				}
				return nil
			}
			f := feedSteps(t, c.workers[0])
			err := f.take(t, wants.request)
			if err == nil || wants.want != nil && !errors.Is(err, wants.want) || over > 0 {
				t.Fatalf("the step is over %d times: %v", over, err)
			}
			if err := c.server.Do(t.Context(), m.next); err != nil { // the control service has dropped it
				t.Fatal(err)
			}
			// If the worker learns of the refusal before it sends a STEP frame, the refused frame counts for the next step.
			if err := f.take(t, &Request{Keys: []uint64{6}, Values: []float32{1, 2, 3}}); err != nil {
				if err := c.server.Do(t.Context(), m.next); err != nil {
					t.Fatal(err)
				}
			}
			before := over
			if err := f.take(t, &Request{Keys: []uint64{6}, Values: []float32{1, 2, 3}}); err != nil || over != before+1 {
				t.Errorf("the step after the next is over %d times: %v", over-before, err)
			}
		})
	}
}
