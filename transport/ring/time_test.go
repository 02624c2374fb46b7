// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"testing"
	"time"

	"github.com/libra-ina/libra/wire"
)

// Poll takes what has arrived, also if it is more than one batch.
func TestPollTakesManyPayloads(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(2)
		all := n.rings(t, 10, nil)
		defer closeAll(all)
		const many = 5*batch + 1
		for range many {
			n.hosts[0].push(n.hosts[1].local, []byte{1})
		}
		if err := all[0].Poll(); err != nil || all[0].Stats().Malformed != many {
			t.Errorf("%v, and %d of %d payloads are taken", err, all[0].Stats().Malformed, many)
		}
	})
}

// An error of the link ends the ring also if it is one of a repetition.
func TestRepetitionThatFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(2)
		all := n.rings(t, 5000, func(c *Config) { c.Limit = shortLimit })
		defer closeAll(all)
		broken := errors.New("the interface is gone")
		n.hosts[0].broken = broken
		n.fate = func(from, _ int, h wire.Header, _ []byte) (int, time.Duration) {
			if from == 0 && h.Type == wire.TypeBlock && h.Seq != 0 {
				return 0, 0
			}
			return 1, 0
		}
		begin := time.Now()
		if errs := reduceAll(all, zeros(2, 5000)); !errors.Is(errs[0], broken) || time.Since(begin) < shortLimit {
			t.Errorf("%v after %v", errs, time.Since(begin)) // the other one waits for the limit
		}
	})
}

// An operation may stand still for the limit, to the millisecond, and time in which the process was
// stopped does not count.
func TestLimitIsKept(t *testing.T) {
	for _, limit := range []time.Duration{300 * time.Millisecond, 1777 * time.Millisecond, 5 * time.Second} {
		inBubble(t, func(t *testing.T) {
			n := newNetwork(3)
			cfg := n.config(1, 10)
			cfg.Limit = limit
			r := open(t, cfg)
			defer r.Close()
			begin := time.Now()
			err := r.Reduce(make([]float32, 10))
			if took := time.Since(begin); err == nil || took < limit || took > limit+time.Millisecond {
				t.Errorf("%v after %v, want the limit %v", err, took, limit)
			}
		})
	}
	inBubble(t, func(t *testing.T) {
		n := newNetwork(3)
		all := n.rings(t, 50_000, func(c *Config) { c.Limit = shortLimit })
		defer closeAll(all)
		for _, h := range n.hosts {
			h.stopped = time.Hour
		}
		for i, err := range reduceAll(all, zeros(3, 50_000)) {
			if err != nil {
				t.Errorf("worker %d: %v", i, err)
			}
		}
	})
}

// A successor that comes to the operation is progress: whoever comes after it has the whole limit
// again.
func TestSuccessorThatComesIsProgress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(3)
		all := n.rings(t, 1000, func(c *Config) { c.Limit = shortLimit })
		defer closeAll(all)
		errs := make(chan error, 3)
		for i, after := range []time.Duration{0, shortLimit * 3 / 4, shortLimit * 3 / 2} {
			go func() {
				time.Sleep(after)
				errs <- all[i].Reduce(make([]float32, 1000))
			}()
		}
		for range 3 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// A link that takes frames again is asked within milliseconds.
func TestLinkThatTakesFramesAgain(t *testing.T) {
	took := func(outage time.Duration) (d time.Duration) {
		inBubble(t, func(t *testing.T) {
			n := newNetwork(2)
			all := n.rings(t, 500_000, nil)
			defer closeAll(all)
			full := func(is bool) func() {
				return func() {
					n.mu.Lock()
					defer n.mu.Unlock()
					n.hosts[0].full = is
				}
			}
			if outage > 0 {
				time.AfterFunc(latency/2, full(true)) // it is told in the operation, and has nothing in the network
				time.AfterFunc(outage, full(false))
			}
			begin := time.Now()
			ended := make(chan error)
			go func() { ended <- all[1].Reduce(make([]float32, 500_000)) }()
			err := all[0].Reduce(make([]float32, 500_000))
			d = time.Since(begin) // the other one may wait for more: for ACKs of this one, which computes
			if err = errors.Join(err, all[0].Poll(), <-ended); err != nil {
				t.Error(err)
			}
		})
		return d
	}
	usual := took(0)
	for outage := 900 * time.Millisecond; outage < 1500*time.Millisecond; outage += 230 * time.Millisecond {
		if d := took(outage); d < outage || d > outage+usual+3*sendRetry {
			t.Errorf("an operation of %v took %v with an outage of %v", usual, d, outage)
		}
	}
}

// In a ring of two the neighbours are one worker, which is told once.
func TestOneNeighbourIsToldOnce(t *testing.T) {
	presences := func(workers int) (count uint64) {
		inBubble(t, func(t *testing.T) {
			cfg := newNetwork(workers).config(0, 10)
			cfg.Limit = shortLimit
			r := open(t, cfg)
			defer r.Close()
			if r.Reduce(make([]float32, 10)) == nil {
				t.Error("nobody else is there")
			}
			count = r.Stats().Presences
		})
		return count
	}
	if two, three := presences(2), presences(3); two < 5 || three != 2*two-1 { // the successor is not told at first
		t.Errorf("%d presences in a ring of two, %d in one of three", two, three)
	}
}
