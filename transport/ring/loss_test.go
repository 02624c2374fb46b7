// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// Whatever is lost once, copied or late, the results are the reference's.
func TestFaults(t *testing.T) {
	type fate = func(rng *rand.Rand, h wire.Header, payload []byte) (int, time.Duration)
	hasValues := func(h wire.Header, payload []byte) bool {
		b, _, err := wire.ParseBlock(payload)
		return h.Type == wire.TypeBlock && err == nil && b.Count > 0
	}
	for name, f := range map[string]fate{
		"values lost once": func(_ *rand.Rand, h wire.Header, payload []byte) (int, time.Duration) {
			if hasValues(h, payload) && h.Flags&wire.FlagRetx == 0 {
				return 0, 0
			}
			return 1, 0
		},
		"half of the presences lost": func(rng *rand.Rand, h wire.Header, payload []byte) (int, time.Duration) {
			if h.Type == wire.TypeBlock && !hasValues(h, payload) {
				return rng.IntN(2), 0
			}
			return 1, 0
		},
		"half of the ACKs lost": func(rng *rand.Rand, h wire.Header, _ []byte) (int, time.Duration) {
			if h.Type == wire.TypeAck {
				return rng.IntN(2), 0
			}
			return 1, 0
		},
		"all copied": func(rng *rand.Rand, _ wire.Header, _ []byte) (int, time.Duration) {
			return 2, time.Duration(rng.IntN(3)) * 100 * time.Microsecond
		},
		"1 % of all": func(rng *rand.Rand, h wire.Header, payload []byte) (int, time.Duration) {
			switch rng.IntN(100) {
			case 0:
				return 0, 0
			case 1:
				return 2, time.Duration(rng.IntN(1000)) * time.Microsecond
			case 2:
				return 1, time.Duration(rng.IntN(1000)) * time.Microsecond
			case 3: // copies that come when later operations are in progress
				return 2, time.Duration(rng.IntN(1000)) * time.Millisecond
			}
			return 1, 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, with := range []codec.Config{{}, {Bound: 8}} {
				inBubble(t, func(t *testing.T) {
					n := newNetwork(4)
					rng := rand.New(rand.NewPCG(3, 3))
					n.fate = func(_, _ int, h wire.Header, payload []byte) (int, time.Duration) { return f(rng, h, payload) }
					all := n.rings(t, 5000, func(c *Config) { c.Codec = with })
					operate(t, all, rand.New(rand.NewPCG(4, 4)), 3)
					for i, h := range n.hosts {
						if len(h.free)+all[i].window.Outstanding() != len(h.bufs) {
							t.Errorf("worker %d has %d of its %d buffers", h.id, len(h.free), len(h.bufs))
						}
					}
					closeAll(all)
				})
			}
		})
	}
}

// A link without room for frames, and a window of few frames, delay operations only.
func TestNarrowLinks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(3)
		for _, h := range n.hosts {
			h.short, h.window = 5, 4
			h.bufs, h.free = h.bufs[:5], h.free[:5]
		}
		all := n.rings(t, 5000, nil)
		defer closeAll(all)
		operate(t, all, rand.New(rand.NewPCG(4, 4)), 2)
	})
}

// A host that is out of reach for 1 to 9 s, whenever that begins, delays operations only: the limit
// is longer. That includes the last operation, after which workers close.
func TestOutages(t *testing.T) {
	const workers, values = 3, 3000
	for at := range workers {
		for step := range 2 * 36 { // the operations take 33 latencies
			seconds, begins := []int{9, 1 + step/2%8}[step%2], time.Duration(step/2)*latency
			inBubble(t, func(t *testing.T) {
				n := newNetwork(workers)
				all := n.rings(t, values, nil)
				began, lasts := time.Now().Add(begins), time.Duration(seconds)*time.Second
				n.fate = func(from, to int, _ wire.Header, _ []byte) (int, time.Duration) {
					if since := time.Since(began); (from == at || to == at) && since >= 0 && since < lasts {
						return 0, 0
					}
					return 1, 0
				}
				var group sync.WaitGroup
				for i, r := range all {
					group.Go(func() {
						for op := range 3 {
							vector := slices.Repeat([]float32{float32(op + i)}, values)
							if err := r.Reduce(vector); err != nil || vector[0] != float32(3*op+3) {
								t.Errorf("%d s from %v on, worker %d of 0 to %d out of reach: worker %d, operation %d: %v, %v", seconds,
									begins, at, workers-1, i, op, vector[0], err)
							}
						}
						if err := r.Close(); err != nil {
							t.Error(err)
						}
					})
				}
				group.Wait()
				// Reduce lingers for some timeouts, of a second at most, and Close for the limit after the last
				// answer.
				if took := time.Since(began); took > lasts+2*settleLimit*time.Second+DefaultLimit {
					t.Errorf("%d s from %v on, worker %d: closed after %v", seconds, begins, at, took)
				}
			})
		}
	}
}

// Frames that change places delay an operation by latencies, and not by timeouts.
func TestFramesThatChangePlaces(t *testing.T) {
	for seed := range uint64(100) {
		inBubble(t, func(t *testing.T) {
			n, rng := newNetwork(2), rand.New(rand.NewPCG(seed, 0))
			n.fate = func(_, _ int, _ wire.Header, _ []byte) (int, time.Duration) {
				return 1, time.Duration(rng.IntN(2)) * latency
			}
			all := n.rings(t, 50_000, nil)
			defer closeAll(all)
			began := time.Now()
			if err := errors.Join(reduceAll(all, zeros(2, 50_000))...); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 5*time.Millisecond {
				t.Errorf("seed %d: an operation took %v", seed, took)
			}
		})
	}
}

// A worker whose last ACKs were lost does not wait for a successor that has closed meanwhile.
func TestFarewell(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(2)
		all := n.rings(t, 50_000, nil)
		deaf := true // worker 1 does not get its last ACKs
		n.fate = func(_, to int, h wire.Header, _ []byte) (int, time.Duration) {
			if deaf && to == 1 && h.Type == wire.TypeAck {
				return 0, 0
			}
			return 1, 0
		}
		operate(t, all, rand.New(rand.NewPCG(1, 1)), 1)
		if all[1].window.Outstanding() < wire.CoverBits {
			t.Fatalf("%d frames are not acknowledged", all[1].window.Outstanding())
		}
		deaf = false
		began := time.Now()
		if err := errors.Join(all[0].Close(), all[1].Close()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("closing took %v", took)
		}
	})
}

// A link that takes no frames until the limit ends its ring, with an error that blames nobody else;
// its neighbours do not blame those that wait, too.
func TestLinkThatTakesNothing(t *testing.T) {
	for _, since := range []time.Duration{0, 50 * time.Microsecond} {
		inBubble(t, func(t *testing.T) {
			n := newNetwork(3)
			all := n.rings(t, 50_000, func(c *Config) { c.Limit = shortLimit })
			defer closeAll(all)
			h := n.hosts[1]
			h.stats.LastError = errors.New("cable gone")
			time.AfterFunc(since, func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				h.full = true
			})
			errs := reduceAll(all, zeros(3, 50_000))
			const want = "ring: worker 1, operation 1 stands still for 2s, and its link takes no frames: is its interface up?; the last error of sending was: cable gone"
			if errs[1] == nil || errs[1].Error() != want {
				t.Errorf("%v, want %s", errs[1], want)
			}
			if all[1].values != nil {
				t.Error("the ring keeps a vector that is its caller's again")
			}
			for _, i := range []int{0, 2} {
				var missing *MissingError
				if !errors.As(errs[i], &missing) {
					t.Errorf("worker %d: %v", i, errs[i])
					continue
				}
				// To worker 0, worker 1 may have finished, once it has got all.
				named, wantNamed := len(missing.Absent)+len(missing.Silent), 1
				if i == 0 && all[0].hasMadeAll() {
					wantNamed = 0
				}
				if named != wantNamed {
					t.Errorf("worker %d: %v", i, errs[i])
				}
			}
		})
	}
}

// Each payload with values is counted once as applied, and each copy of it as a duplicate.
func TestCounters(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(3)
		n.fate = func(_, _ int, h wire.Header, payload []byte) (int, time.Duration) {
			if b, _, err := wire.ParseBlock(payload); h.Type == wire.TypeBlock && err == nil && b.Count > 0 {
				return 2, 0
			}
			return 1, 0
		}
		all := n.rings(t, 5000, nil)
		operate(t, all, rand.New(rand.NewPCG(5, 5)), 2)
		time.Sleep(time.Millisecond)
		for _, r := range all { // which takes the last copies
			if err := r.Poll(); err != nil {
				t.Fatal(err)
			}
		}
		for i, r := range all {
			sent, got := all[(i+2)%3].Stats(), r.Stats()
			copies := sent.Sent + 2*sent.Window.Retransmitted
			if sent.Sent == 0 || got.Applied != sent.Sent || got.Duplicates != copies || got.Operations != 2 || got.Refused != 0 {
				t.Errorf("worker %d: %+v, and its predecessor: %+v", i, got, sent)
			}
		}
		closeAll(all)
	})
}

// A worker that waits says so several times within its limit, however short that is, and not more
// often than every quarter of a second with a long one.
func TestPresencesComeWithinTheLimit(t *testing.T) {
	for limit, longest := range map[time.Duration]time.Duration{80 * time.Millisecond: 10 * time.Millisecond,
		400 * time.Millisecond: 50 * time.Millisecond, 8 * time.Second: longestAnnounced} {
		inBubble(t, func(t *testing.T) {
			n := newNetwork(2)
			cfg := n.config(0, 10)
			cfg.Limit = limit
			r := open(t, cfg)
			var last time.Time
			var gap time.Duration
			n.fate = func(_, _ int, _ wire.Header, _ []byte) (int, time.Duration) {
				if !last.IsZero() {
					gap = max(gap, time.Since(last))
				}
				last = time.Now()
				return 0, 0
			}
			if err := r.Reduce(make([]float32, 10)); err == nil {
				t.Error("nobody else is there")
			}
			if gap < longest || gap > longest+time.Millisecond {
				t.Errorf("with a limit of %v, presences are %v apart at most, want %v", limit, gap, longest)
			}
		})
	}
}
