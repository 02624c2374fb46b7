// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// An operation whose frames are lost, once or for a while, has its result as soon as one copy of
// each arrives.
func TestLostFramesAreRepeated(t *testing.T) {
	for name, loses := range map[string]func(worker int, up bool, h wire.Header) bool{
		"a contribution":    func(worker int, up bool, h wire.Header) bool { return up && worker == 1 && h.Flags&wire.FlagRetx == 0 },
		"all contributions": func(_ int, up bool, h wire.Header) bool { return up && h.Flags&wire.FlagRetx == 0 },
		"a result":          func(worker int, _ bool, h wire.Header) bool { return worker == 0 && h.Flags&wire.FlagAll != 0 },
		"all results":       func(_ int, _ bool, h wire.Header) bool { return h.Flags&wire.FlagAll != 0 },
		"a contribution, and all results": func(worker int, up bool, h wire.Header) bool {
			return up && worker == 1 && h.Flags&wire.FlagRetx == 0 || h.Flags&wire.FlagAll != 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork[int32](t, small, aggregator.Config{})
				all := workers[int32](t, n, small)
				n.loses = loses
				sums := [][]int32{make([]int32, 8), make([]int32, 8)}
				for range 3 {
					began := time.Now()
					waitAll(t, all, startAll(t, all), sums)
					if want := slices.Repeat([]int32{3}, 8); !slices.Equal(sums[0], want) || !slices.Equal(sums[1], want) {
						t.Fatalf("%v", sums)
					}
					if took := time.Since(began); took > 2*maxTimeout {
						t.Errorf("it took %v", took)
					}
				}
				if all[0].Stats().Repeats+all[1].Stats().Repeats == 0 {
					t.Error("nothing was repeated")
				}
			})
		})
	}
}

// The result of a later operation shows that an earlier frame is lost: no time passes.
func TestLaterResultsHurry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork[float32](t, small, aggregator.Config{})
		all := workers[float32](t, n, small)
		began := time.Now()
		n.loses = func(worker int, up bool, h wire.Header) bool { // operation 1's contribution, and operation 2's result
			return up && worker == 0 && h.Seq == 2 && h.Flags&wire.FlagRetx == 0 || !up && worker == 1 && h.Flags&wire.FlagAll != 0 && h.Seq == 0 && n.rounds(t) == 2
		}
		var ops []Op
		for range small.InFlight {
			ops = append(ops, startAll(t, all))
		}
		for _, op := range ops {
			for i, r := range all {
				sums := make([]float32, small.Width)
				if err := r.Wait(op, sums); err != nil || sums[7] != 3 {
					t.Errorf("worker %d, operation %d: %v, %v", i, op, sums, err)
				}
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		if s := all[0].Stats(); s.Hurried == 0 || s.Repeats != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// rounds returns how many rounds are complete. Its caller is asked whether a payload is lost.
func (n *network) rounds(t *testing.T) uint64 {
	c, err := n.model.JobCounters(jobID)
	if err != nil {
		t.Error(err)
	}
	return c.Rounds
}

// The time until a repetition follows the time that results take, and doubles; a repetition asks
// who has contributed.
func TestTimesOfRepetitions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork[int32](t, small, aggregator.Config{})
		all := workers[int32](t, n, small)
		values := make([]int32, small.Width)
		for range 100 { // results take 2 ms
			op := startOne(t, all[0], values)
			time.Sleep(2 * time.Millisecond)
			if err := all[1].Wait(startOne(t, all[1], values), nil); err != nil {
				t.Fatal(err)
			}
			if err := all[0].Wait(op, nil); err != nil {
				t.Fatal(err)
			}
		}
		h := n.hosts[0]
		h.record()
		began := time.Now()
		op := startOne(t, all[0], values)
		go func() {
			time.Sleep(100 * time.Millisecond)
			if err := all[1].Wait(startOne(t, all[1], values), nil); err != nil {
				t.Error(err)
			}
		}()
		if err := all[0].Wait(op, nil); err != nil {
			t.Fatal(err)
		}
		var after []time.Duration
		for i, at := range h.at {
			after = append(after, at.Sub(began).Round(100*time.Microsecond))
			want := wire.FlagQuiet
			if i > 0 {
				want = wire.FlagRetx | wire.FlagCover
			}
			if h.sent[i].Flags != want || h.sent[i].Seq != h.sent[0].Seq {
				t.Errorf("frame %d: %+v", i, h.sent[i])
			}
		}
		const ms = time.Millisecond
		if want := []time.Duration{0, 2 * ms, 6 * ms, 14 * ms, 30 * ms, 46 * ms, 62 * ms, 78 * ms, 94 * ms}; !slices.Equal(after, want) {
			t.Errorf("sent after %v, want %v", after, want)
		}
	})
}

func startOne[T Value](t *testing.T, r *Reducer[T], values []T) Op {
	t.Helper()
	op, err := r.Start(values)
	if err != nil {
		t.Error(err)
	}
	return op
}

// Results that come at once are asked for after a quarter of a millisecond, and before the first
// has come after 16 ms.
func TestTimeouts(t *testing.T) {
	var e estimator
	if d := e.timeout(); d != maxTimeout {
		t.Errorf("%v before the first result", d)
	}
	for range 100 {
		e.sample(time.Microsecond)
	}
	if d := e.timeout(); d != minTimeout {
		t.Errorf("%v after fast results", d)
	}
	e.sample(time.Hour)
	if d := e.timeout(); d != maxTimeout {
		t.Errorf("%v after a slow one", d)
	}
}

// A worker that does not contribute is named when the limit has passed, and so are those that have
// not joined.
func TestMissingWorkersAreNamed(t *testing.T) {
	shape := Shape{Workers: 4, Width: 3, InFlight: 2}
	members := func(ids ...uint16) func(context.Context) ([]uint16, error) {
		return func(context.Context) ([]uint16, error) { return ids, nil }
	}
	for name, c := range map[string]struct {
		admitted, contribute int
		each                 bool // the aggregator ignores COVER
		silent               bool
		members              func(context.Context) ([]uint16, error)
		want                 string
		missing              []uint16
		absent               int
	}{
		"one":      {4, 3, false, false, members(10, 20, 30, 40), "worker 40 did not contribute: start all workers of the job again.", []uint16{40}, 0},
		"three":    {4, 1, false, false, members(10, 20, 30, 40), "workers 20, 30 and 40 did not contribute", []uint16{20, 30, 40}, 0},
		"absent":   {2, 2, false, false, members(10, 20), "2 of the job's workers did not join it", nil, 2},
		"both":     {3, 2, false, false, members(10, 20, 30), "worker 30 did not contribute, and 1 of the job's workers did not join it", []uint16{30}, 1},
		"unknown":  {4, 3, true, false, members(10, 20, 30, 40), "other workers did not contribute, and the aggregator does not tell which", nil, 0},
		"unnamed":  {4, 3, false, false, nil, "other workers did not contribute (the Reducer has no list", nil, 0},
		"unlisted": {4, 3, false, false, func(context.Context) ([]uint16, error) { return nil, errors.New("no way") }, "members is not available: no way", nil, 0},
		"silent":   {4, 3, false, true, members(10, 20, 30, 40), "the aggregator 10.0.0.254:19522 does not answer: is it running and reachable? The last error of sending was: cable gone.", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork[int32](t, shape, aggregator.Config{AnswerEach: c.each})
				n.admit(t, c.admitted)
				if c.silent {
					n.loses = func(int, bool, wire.Header) bool { return true }
					n.hosts[0].stats.LastError = errors.New("cable gone")
				}
				var all []*Reducer[int32]
				for i := range c.contribute {
					cfg := n.config(i, shape)
					cfg.Limit, cfg.Members = 300*time.Millisecond, c.members
					all = append(all, open[int32](t, cfg))
				}
				op := startAll(t, all)
				began := time.Now()
				err := all[0].Wait(op, nil)
				var missing *MissingError
				if !errors.As(err, &missing) || !strings.Contains(err.Error(), c.want) || !slices.Equal(missing.Missing, c.missing) ||
					missing.Absent != c.absent || missing.Silent != c.silent {
					t.Errorf("%v: %+v", err, missing)
				}
				if took := time.Since(began); took < 300*time.Millisecond || took > 400*time.Millisecond {
					t.Errorf("told after %v", took)
				}
				if again := all[0].Poll(); !errors.Is(again, err) {
					t.Errorf("and then: %v", again)
				}
			})
		})
	}
}

// A caller that computes for long is no reason to give up, or to name anybody.
func TestCallersPauseIsNoSilence(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork[int32](t, small, aggregator.Config{})
		all := workers[int32](t, n, small)
		op := startOne(t, all[0], make([]int32, small.Width))
		for range 10 {
			time.Sleep(time.Minute)
			if err := all[0].Poll(); err != nil {
				t.Fatal(err)
			}
		}
		if s := all[0].Stats(); s.Repeats != 10 {
			t.Errorf("%+v", s)
		}
		waitAll(t, all, startOne(t, all[1], make([]int32, small.Width)), make([][]int32, 2))
		if op != 0 {
			t.Errorf("operation %d", op)
		}
	})
}

func ExampleMissingError() {
	err := &MissingError{Op: 12, Waited: 2 * time.Second, Missing: []uint16{3}}
	fmt.Println(err)
	// Output: reducer: operation 12 has no result after 2s of repetitions: worker 3 did not contribute: start all workers of the job again.
}
