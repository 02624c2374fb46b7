// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

func TestBadConfig(t *testing.T) {
	n := newNetwork(3)
	tiny := &tinyLink{Link: n.hosts[0]}
	for want, change := range map[string]func(*Config){
		"Link is missing": func(c *Config) { c.Link = nil },
		"the number of Workers: 1 is not in [2, 1024]":             func(c *Config) { c.Workers = c.Workers[:1] },
		"Place: 3 is not in [0, 2]":                                func(c *Config) { c.Place = 3 },
		"Place: -1 is not in [0, 2]":                               func(c *Config) { c.Place = -1 },
		"Values: 0 is not in [1, 2147483647]":                      func(c *Config) { c.Values = 0 },
		"Codec.Bound: 15 is not in [0, 14]":                        func(c *Config) { c.Codec.Bound = 15 },
		"Scale: 127 is not in [-126, 126]":                         func(c *Config) { c.Codec = codec.Config{Bound: 10, Scale: 127} },
		"Codec.Scale is 3, but without Codec.Bound":                func(c *Config) { c.Codec.Scale = 3 },
		"Codec.Paper: such codes":                                  func(c *Config) { c.Codec = codec.Config{Bound: 10, Paper: true} },
		"Limit -1ns is negative":                                   func(c *Config) { c.Limit = -1 },
		"Workers: 0 and 2 have the same address 10.0.0.1:19522":    func(c *Config) { c.Workers[2] = c.Workers[0] },
		"the link's largest payload: 500 is not in [540, 21474836": func(c *Config) { c.Link = tiny },
	} {
		cfg := n.config(0, 10)
		change(&cfg)
		if _, err := New(t.Context(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// tinyLink carries short payloads only, and finds no path.
type tinyLink struct{ link.Link }

func (*tinyLink) Limits() link.Limits { return link.Limits{MaxPayload: 500, Window: 16} }

type lostLink struct{ *host }

func (lostLink) Path(context.Context, wire.Endpoint) (link.Path, error) {
	return nil, errors.New("no route")
}

func TestNoPath(t *testing.T) {
	cfg := newNetwork(2).config(0, 10)
	cfg.Link = lostLink{cfg.Link.(*host)}
	if _, err := New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "no path to worker 1, ") {
		t.Error(err)
	}
}

const shortLimit = 2 * time.Second

// A worker that has not come, or has died, is named by its neighbours. The others say that they
// wait for someone else, and all are through in a little more than the limit.
func TestMissingWorkers(t *testing.T) {
	for _, dies := range []bool{false, true} {
		for _, workers := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%d workers, one dies: %v", workers, dies), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					n := newNetwork(workers)
					all := n.rings(t, 3000, func(c *Config) { c.Limit = shortLimit })
					defer closeAll(all)
					if dies {
						operate(t, all, rand.New(rand.NewPCG(1, 1)), 1)
					}
					sent := 0
					n.fate = func(from, to int, h wire.Header, _ []byte) (int, time.Duration) {
						if from == 0 && dies && h.Type == wire.TypeBlock && h.Flags&(wire.FlagQuiet|wire.FlagCover) != 0 {
							sent++
						}
						if (from == 0 || to == 0) && (!dies || sent > 1) {
							return 0, 0
						}
						return 1, 0
					}
					began := time.Now()
					vectors := zeros(workers, 3000)
					running := all
					if !dies {
						running, vectors = all[1:], vectors[1:]
					}
					errs := reduceAll(running, vectors)
					if took := time.Since(began); took < shortLimit || took > 2*shortLimit {
						t.Errorf("it took %v", took)
					}
					for i, r := range running {
						place := r.cfg.Place
						if place == 0 {
							continue
						}
						var e *MissingError
						if !errors.As(errs[i], &e) {
							t.Errorf("worker %d: %v", place, errs[i])
							continue
						}
						named := append(append([]Worker{}, e.Absent...), e.Silent...)
						if place > 1 && place < workers-1 {
							if len(named) > 0 || !strings.Contains(e.Error(), "a worker beyond them has not come or has failed") {
								t.Errorf("worker %d: %v", place, e)
							}
							continue
						}
						want := "worker 0 (10.0.0.1:19522) has not come to it"
						if e.Silent != nil {
							want = "worker 0 (10.0.0.1:19522) does not answer any more"
						}
						if len(named) != 1 || named[0].Place != 0 || !strings.Contains(e.Error(), want) {
							t.Errorf("worker %d: %v", place, e)
						}
						if again := r.Poll(); !errors.Is(again, errs[i]) {
							t.Errorf("then %v", again)
						}
					}
				})
			})
		}
	}
}

// A successor that has answered everything, and has finished, is not named by a worker that lacks
// the last block: it is its predecessor whose frames do not arrive.
func TestFinishedWorkerIsNotNamed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(4)
		all := n.rings(t, 3000, func(c *Config) { c.Limit = shortLimit })
		defer closeAll(all)
		n.fate = func(from, to int, h wire.Header, payload []byte) (int, time.Duration) {
			if b, _, err := wire.ParseBlock(payload); from == 0 && to == 1 && h.Type == wire.TypeBlock &&
				err == nil && b.Step == 6 {
				return 0, 0
			}
			return 1, 0
		}
		errs, vectors := make([]error, 4), zeros(4, 3000)
		var group sync.WaitGroup
		for i, r := range all {
			group.Go(func() {
				errs[i] = r.Reduce(vectors[i])
				_ = r.Close()
			})
		}
		group.Wait()
		var e *MissingError
		if !errors.As(errs[1], &e) || len(e.Absent) > 0 || len(e.Silent) != 1 || e.Silent[0].Place != 0 {
			t.Errorf("worker 1: %v", errs[1])
		}
		for _, i := range []int{0, 2, 3} {
			if errs[i] != nil {
				t.Errorf("worker %d has all results: %v", i, errs[i])
			}
		}
	})
}

// A predecessor that has sent everything, and has finished or goes on with the next operation, is
// not named by a worker whose successor does not take its frames.
func TestPredecessorThatHasSentAllIsNotNamed(t *testing.T) {
	for _, workers := range []int{2, 4} {
		for _, goesOn := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d workers, it goes on: %v", workers, goesOn), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					n, last := newNetwork(workers), workers-1
					n.hosts[last-1].window = 1
					all := n.rings(t, 3000, func(c *Config) { c.Limit = shortLimit })
					defer closeAll(all)
					var cut atomic.Bool
					n.fate = func(from, to int, h wire.Header, payload []byte) (int, time.Duration) {
						b, _, err := wire.ParseBlock(payload)
						if from == last-1 && to == last && h.Type == wire.TypeBlock && err == nil && b.Count > 0 && int(b.Step) == 2*workers-2 {
							cut.Store(true) // between these two
						}
						if cut.Load() && min(from, to) == last-1 && max(from, to) == last {
							return 0, 0
						}
						return 1, 0
					}
					errs, vectors := make([]error, workers), zeros(workers, 3000)
					var group sync.WaitGroup
					for i, r := range all {
						group.Go(func() {
							if errs[i] = r.Reduce(vectors[i]); errs[i] == nil && goesOn {
								_ = r.Reduce(vectors[i])
							}
							_ = r.Close()
						})
					}
					group.Wait()
					var e *MissingError
					if !errors.As(errs[last-1], &e) || len(e.Absent) > 0 || len(e.Silent) != 1 || e.Silent[0].Place != last {
						t.Errorf("worker %d: %v", last-1, errs[last-1])
					}
				})
			})
		}
	}
}

// Workers with other vectors, numbers of workers or codes than a neighbour end at once, and name it
// and what differs.
func TestMismatch(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"Values 11 instead of 10":                func(c *Config) { c.Values = 11 },
		"Codec.Bound 9 instead of 10":            func(c *Config) { c.Codec.Bound = 9 },
		"Codec.Bound 0 instead of 10, Codec.Sca": func(c *Config) { c.Codec = codec.Config{} },
		"Codec.Scale 4 instead of 3":             func(c *Config) { c.Codec.Scale = 4 },
		"a number of Workers of 3 instead of 2": func(c *Config) {
			c.Workers = append(c.Workers, wire.Endpoint{IP: netip.MustParseAddr("10.0.0.9"), Port: 1})
		},
	} {
		for _, late := range []time.Duration{0, time.Second} {
			t.Run(what, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					all := newNetwork(2).rings(t, 10, func(c *Config) {
						c.Codec = codec.Config{Bound: 10, Scale: 3}
						if c.Place == 1 {
							change(c)
						}
					})
					defer closeAll(all)
					began := time.Now()
					errs := make(chan error, 2)
					go func() {
						time.Sleep(late)
						errs <- all[1].Reduce(make([]float32, all[1].cfg.Values))
					}()
					err := all[0].Reduce(make([]float32, 10))
					var e *MismatchError
					if !errors.As(err, &e) || e.Neighbour.Place != 1 || !strings.Contains(err.Error(), "worker 1 (10.0.0.2:19522) has "+what) {
						t.Error(err)
					}
					if err := <-errs; !errors.As(err, &e) || e.Neighbour.Place != 0 || e.Place != 1 {
						t.Error(err)
					}
					if took := time.Since(began); took > late+firstAnnounced {
						t.Errorf("it took %v", took)
					}
				})
			})
		}
	}
}

// Workers with lists in different orders name neighbours that refuse them.
func TestOtherOrder(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		all := newNetwork(4).rings(t, 10, func(c *Config) {
			c.Limit = shortLimit
			if c.Place == 0 {
				c.Workers[1], c.Workers[2] = c.Workers[2], c.Workers[1]
			}
		})
		defer closeAll(all)
		errs := reduceAll(all, zeros(4, 10))
		for w, err := range errs[:2] {
			var e *MissingError
			if !errors.As(err, &e) || len(e.Absent) == 0 {
				t.Errorf("worker %d: %v", w, err)
			}
		}
		if want := "worker 1 (10.0.0.3:19522) has not come to it, and refuses this worker: sender not admitted"; !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%v, want %q", errs[0], want)
		}
	})
}

// Workers of a former ring, which have the same addresses, disturb nobody.
func TestFormerRing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(2)
		former := n.rings(t, 5000, func(c *Config) { c.Limit = shortLimit })
		operate(t, former, rand.New(rand.NewPCG(1, 1)), 2)
		left := make(chan error)
		go func() { left <- former[1].Reduce(make([]float32, 5000)) }() // worker 0 has left, and comes again
		time.Sleep(100 * time.Millisecond)
		cfg := n.config(0, 5000)
		cfg.Epoch++
		first := open(t, cfg)
		done := make(chan error)
		vectors := [][]float32{make([]float32, 5000), make([]float32, 5000)}
		vectors[0][9], vectors[1][9] = 1, 2
		go func() { done <- first.Reduce(vectors[0]) }()
		// It may still have had a frame on its way, which is refused at once.
		if err := <-left; !strings.Contains(err.Error(), "worker 0 (10.0.0.1:19522) has not come to it, and refuses this worker: wrong epoch") &&
			!strings.Contains(err.Error(), "worker 0 (10.0.0.1:19522) refuses a frame of worker 1: wrong epoch") {
			t.Error(err)
		}
		cfg = n.config(1, 5000)
		cfg.Epoch++
		second := open(t, cfg)
		if err := second.Reduce(vectors[1]); err != nil || vectors[1][9] != 3 {
			t.Error(vectors[1][9], err)
		}
		if err := <-done; err != nil || vectors[0][9] != 3 {
			t.Error(vectors[0][9], err)
		}
		closeAll([]*Ring{first, second})
	})
}

var errEnough = errors.New("enough")

// Config.Ended ends a wait, and errors of the link end the Ring.
func TestEnded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(2)
		cfg := n.config(0, 10)
		cfg.Ended = func() error {
			if time.Since(began) > time.Second {
				return errEnough
			}
			return nil
		}
		began = time.Now()
		r := open(t, cfg)
		if err := r.Reduce(make([]float32, 10)); !errors.Is(err, errEnough) || time.Since(began) > 2*time.Second {
			t.Error(err)
		}
		other := open(t, n.config(1, 10))
		n.hosts[1].closed = true
		if err := other.Reduce(make([]float32, 10)); err == nil {
			t.Error("a closed link is none")
		}
		closeAll([]*Ring{r, other})
	})
}

var began time.Time
