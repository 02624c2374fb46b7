// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
)

const (
	// maxSteps limits a life: more steps mean that its goroutines keep each other busy.
	maxSteps = 1 << 20
	// bound is how long calls may take once the trouble has ended, in virtual time: some of the
	// longest retransmission timeouts for each waiting window.
	bound = 60 * time.Second
	// learningRate is the store's.
	learningRate = 0.5
	job          = 7
)

// sim is one life.
type sim struct {
	options  Options
	plan     plan
	schedule *rand.Rand // which actor runs next, and how much of a request succeeds
	netRand  *rand.Rand

	began   time.Time
	step    int64
	actors  []*actor
	current atomic.Pointer[actor] // the woken actor
	events  events
	order   int
	choice  []*actor

	net      *network
	ledger   *ledger
	servers  []*server // by index
	switched *host
	model    *aggregator.Model
	plane    *transport.AggregatorServer
	hot      *packer.HotSet
	workers  []*worker
	epochs   uint16
	result   Result

	locked   bool // an admission at the server is in progress
	healed   bool // the trouble has ended
	healedAt time.Time
	over     bool // links fail, so that everything ends
	failure  error

	out    io.Writer
	digest hash.Hash64
	line   []byte // of the trace

	tracing sync.Mutex
	mu      sync.Mutex // for goroutines that are not actors
	kicked  chan struct{}
	cluster *clusterLife // nil in lives without a cluster
}

// kick makes a sleeping scheduler check for work.
func (s *sim) kick() {
	if s.cluster == nil {
		return // in lives of workers only its own turns create work
	}
	select {
	case s.kicked <- struct{}{}:
	default:
	}
}

// after makes the scheduler call fn later.
func (s *sim) after(d time.Duration, fn func()) { s.at(d, event{fn: fn}) }

// quietly is like after, for functions that no goroutine waits for: the scheduler need not wait for
// any.
func (s *sim) quietly(d time.Duration, fn func()) { s.at(d, event{fn: fn, quiet: true}) }

func (s *sim) at(d time.Duration, e event) {
	s.order++
	e.at, e.order = time.Now().Add(d).UnixNano(), s.order
	s.events.push(e)
}

// ended reports whether all workers have made all their calls.
func (s *sim) ended() bool {
	for _, w := range s.workers {
		if !w.act.gone {
			return false
		}
	}
	return true
}

// calm reports whether all workers have ended, and no frame is in flight.
func (s *sim) calm() bool {
	return s.ended() && len(s.events) == 0 && s.unread() == 0
}

// fail records the first violation.
func (s *sim) fail(format string, args ...any) {
	if s.failure == nil {
		s.failure = &Violation{Options: s.options, Step: s.step, At: time.Since(s.began), What: fmt.Sprintf(format, args...)}
		s.trace("VIOLATION %v\n", s.failure)
	}
}

// run continues the life until all actors except the endpoints' have ended, something is wrong, or
// nothing happens any more.
func (s *sim) run(ended func() bool) {
	for s.rest(); s.failure == nil; s.step++ {
		s.current.Store(nil)
		s.cluster.collect()
		now := time.Now()
		if s.step == maxSteps || s.healed && now.Sub(s.healedAt) > s.bound() {
			s.fail("no end in sight: %s", s.state())
			return
		}
		for s.events.due(now) {
			e := s.events.pop()
			if e.fn(); !e.quiet {
				synctest.Wait()
				s.cluster.collect()
			}
		}
		if ended() {
			return
		}
		if a := s.choose(now); a != nil {
			s.wake(a)
			continue
		}
		next, ok := s.next()
		if !ok && s.cluster != nil {
			next, ok = now.Add(time.Second), true // a timer of the product
		}
		if !ok {
			s.fail("nothing happens any more: %s", s.state())
			return
		}
		s.sleep(next.Sub(now))
		s.rest()
	}
}

// rest returns when no goroutine runs any more: until then time stands still. Timers of the product
// may end at the same moment, and the race detector knows only Wait.
func (s *sim) rest() {
	time.Sleep(time.Microsecond)
	synctest.Wait()
}

// sleep lets time pass until there is something to do.
func (s *sim) sleep(d time.Duration) {
	if s.cluster == nil {
		time.Sleep(d)
		return
	}
	select {
	case <-s.kicked:
	default:
	}
	timer := time.NewTimer(d)
	select {
	case <-s.kicked:
	case <-timer.C:
	}
	timer.Stop()
}

// choose returns the actor that runs next, or nil if none can.
func (s *sim) choose(now time.Time) *actor {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.choice = s.choice[:0]
	if s.cluster != nil { // goroutines that are not actors may become some at the same time
		slices.SortStableFunc(s.actors, func(a, b *actor) int { return cmp.Compare(a.name, b.name) })
	}
	live := s.actors[:0]
	for _, a := range s.actors {
		if a.gone {
			continue
		}
		live = append(live, a)
		if a.parked && a.runnable(now) {
			s.choice = append(s.choice, a)
		}
	}
	clear(s.actors[len(live):])
	s.actors = live
	if len(s.choice) == 0 {
		return nil
	}
	return s.choice[s.schedule.IntN(len(s.choice))]
}

// wake runs an actor until it parks or waits.
func (s *sim) wake(a *actor) {
	s.turn(a)
	s.current.Store(a)
	a.parked = false
	a.resume <- struct{}{}
	if s.cluster != nil { // the accounts are compared before time passes: they plan later comparisons
		synctest.Wait()
		s.cluster.books().look(a.host)
	}
	s.rest()
	if s.failure == nil && s.ledger != nil && (a.host == nil || s.serves(a.host)) {
		s.ledger.balance()
	}
}

// next returns the time of the next event, if there is nothing to do now.
func (s *sim) next() (at time.Time, ok bool) {
	if len(s.events) > 0 {
		at, ok = time.Unix(0, s.events[0].at), true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.actors {
		if a.parked && !a.until.IsZero() && (a.host == nil || !a.host.paused) && (!ok || a.until.Before(at)) {
			at, ok = a.until, true
		}
	}
	return at, ok
}

// end ends every goroutine of the life.
func (s *sim) end() {
	s.over = true
	for any := true; any; {
		any = false
		synctest.Wait()
		s.mu.Lock()
		actors := slices.Clone(s.actors)
		s.mu.Unlock()
		for _, a := range actors {
			if a.parked {
				any = true
				s.current.Store(a)
				a.parked = false
				a.resume <- struct{}{}
				synctest.Wait()
			}
		}
	}
}

// state lists the actors that have not ended.
func (s *sim) state() string {
	text := ""
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.actors {
		switch {
		case a.gone:
		case a.parked:
			text += fmt.Sprintf("%s is at %s; ", a.name, a.where)
		default:
			text += fmt.Sprintf("%s waits in %s; ", a.name, a.doing)
		}
	}
	return text
}

// trace writes to the life's record and its digest.
func (s *sim) trace(format string, args ...any) {
	s.tracing.Lock()
	defer s.tracing.Unlock()
	s.write(fmt.Appendf(s.line[:0], format, args...))
}

// turn traces the actor of a turn. It and log are called so often that formatting would take a
// tenth of a life.
func (s *sim) turn(a *actor) {
	s.tracing.Lock()
	defer s.tracing.Unlock()
	b := append(s.stamp(), a.name...)
	b = append(append(b, ' '), a.where...)
	s.write(append(b, '\n'))
}

// log traces the fate of a frame.
func (s *sim) log(what string, from, to *host, payload []byte) {
	s.tracing.Lock()
	defer s.tracing.Unlock()
	b := append(s.stamp(), from.name...)
	b = append(append(b, " > "...), to.name...)
	b = append(append(append(b, ' '), what...), ' ')
	b = hex.AppendEncode(b, payload[:min(12, len(payload))])
	s.write(append(b, '\n'))
}

// stamp begins a line with the microseconds of the life, in nine columns.
func (s *sim) stamp() []byte {
	var digits [20]byte
	n := strconv.AppendInt(digits[:0], time.Since(s.began).Microseconds(), 10)
	s.line = append(s.line[:0], "         "[min(9, len(n)):]...)
	return append(append(s.line, n...), ' ')
}

func (s *sim) write(line []byte) {
	s.line = line
	_, _ = s.digest.Write(line)
	if s.out != nil {
		_, _ = s.out.Write(line)
	}
}

func newDigest() hash.Hash64 { return fnv.New64a() }
