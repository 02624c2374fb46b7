// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/libra-ina/libra/control/access"
)

// How the server finds an aggregator for its job: at its start, and when it has lost the last one.

const (
	// firstLimit is how long the server waits for the switch at its start, before it tries standbys.
	firstLimit = 5 * time.Second
	// candidateLimit is how long it waits for each candidate otherwise.
	candidateLimit = time.Second
	// candidatePause is the time between two searches through all candidates.
	candidatePause = 500 * time.Millisecond
	// settledEvery is how often it looks whether all workers have settled.
	settledEvery = 10 * time.Millisecond
)

// openFirst creates the job at the first aggregator that takes it.
func (s *server) openFirst(ctx context.Context) error {
	var h *harvesting
	var err error
	count := len(s.env.Config.Aggregators())
	if count == 1 {
		h, err = s.openGeneration(ctx, 0, startLimit, startLimit)
	} else {
		limit, unmarked := firstLimit, 0 // unmarked ones, at which it is of no use to try again
		said := reasons{}
		for until, n := time.Now().Add(startLimit), 0; ; n++ {
			h, err = s.openMarked(ctx, n%count, limit)
			if errors.Is(err, errNoMarks) {
				unmarked++
			} else {
				unmarked = 0
			}
			if err == nil || ctx.Err() != nil || n%count == count-1 && (time.Now().After(until) || unmarked >= count) {
				break
			}
			if said.isNews(n%count, err) {
				s.env.Log.Info("an aggregator does not take the job: the server tries the next one", "error", err)
			}
			limit = candidateLimit
			if n%count == count-1 && pauseFor(ctx, candidatePause) != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	s.job = h.job
	s.generation.Store(h)
	if !s.job.Marks {
		s.env.Log.Info("the aggregator does not tell whose frames a harvest has: its death ends the job", "job", s.job.ID)
	}
	return nil
}

// reasons are why aggregators do not take a job, by index, so that each is logged once.
type reasons map[int]string

// isNews reports whether an aggregator has not given this reason last. Numbers do not count: some
// are what is left of a lease.
func (r reasons) isNews(at int, err error) bool {
	why := strings.Map(func(c rune) rune {
		if unicode.IsDigit(c) || c == '.' {
			return -1
		}
		return c
	}, err.Error())
	news := r[at] != why
	r[at] = why
	return news
}

func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// openGeneration creates an instance of the job at an aggregator, by its index, and holds it. It
// waits for the aggregator, and for the end of another job with the number, for at most the given
// times.
func (s *server) openGeneration(ctx context.Context, at int, reach, taken time.Duration) (*harvesting, error) {
	h := newHarvesting(at)
	var err error
	h.conn, err = access.Dial(ctx, access.TheSwitch(), s.env.Config.Aggregators()[at].Control, s.security, reach,
		s.env.Log, s.env.Machine.Client...)
	if err != nil {
		return nil, s.shares.refusalOf(0, err)
	}
	if err := s.checkDrained(ctx, h); err != nil {
		return nil, errors.Join(err, h.closeConns())
	}
	if s.service != nil {
		h.used = s.service.UsedEpochs()
	}
	shares, err := s.reachShares(ctx, h, &s.shares, 0, reach)
	if err == nil {
		err = s.openShares(ctx, h, &s.shares, shares, nil, taken)
	}
	if err != nil {
		return nil, errors.Join(err, h.closeConns())
	}
	h.open.Store(&shares)
	return h, nil
}

// discardGeneration ends a generation that the job does not use any more, as far as its aggregator
// can be reached.
func (s *server) discardGeneration(h *harvesting) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	_ = removeShares(ctx, h.listShares()) // or they end with their leases
	h.closeStreams()
}

func (h *harvesting) closeStreams() {
	releaseShares(h.listShares())
	_ = h.closeConns()
}

func (h *harvesting) closeConns() error {
	return errors.Join(h.conn.Close(), closeConns(h.listShares(), []*openShare{{conn: h.conn}}))
}

// moveOn returns the next generation, at an aggregator after the one that was lost, when all
// workers have settled; or nil when ctx has ended. The move that made the job leave, or nil, is
// told when all aggregators have refused the job and all workers have settled.
func (s *server) moveOn(ctx context.Context, lost int, m *move) *harvesting {
	count := len(s.env.Config.Aggregators())
	said := reasons{}
	var refused []error // since the search has come to the lost one
	for n := 1; ctx.Err() == nil; n++ {
		at := (lost + n) % count
		h, err := s.openMarked(ctx, at, candidateLimit)
		if err == nil {
			if h, err = s.settleFor(ctx, h); err == nil {
				return h
			}
		}
		if said.isNews(at, err) && ctx.Err() == nil {
			s.env.Log.Info("an aggregator does not take the job: the server goes on asking all of them", "control",
				s.env.Config.Aggregators()[at].Control, "error", err)
		}
		if at != lost {
			refused = append(refused, s.refusalAt(at, err))
		}
		if n%count > 0 {
			continue
		}
		if m != nil && s.service.AllSettled() {
			m.reason = errors.Join(refused...)
			m.tellMoved(lost, nil)
		}
		refused = nil
		if pauseFor(ctx, candidatePause) != nil {
			break
		}
	}
	return nil
}

// refusalAt says which aggregator has not taken the job, and why.
func (s *server) refusalAt(at int, err error) error {
	return fmt.Errorf("aggregator at %v: %w", s.env.Config.Aggregators()[at].Control, err)
}

// settleFor waits until all workers have settled, and returns the instance of the job that may
// begin then. It is next, or, if workers have named epochs that its aggregator was not told, a new
// one there that is told all of them.
func (s *server) settleFor(ctx context.Context, next *harvesting) (*harvesting, error) {
	for {
		err := s.awaitSettled(ctx, next)
		if err == nil {
			return next, nil
		}
		s.discardGeneration(next)
		if !errors.Is(err, errUntoldEpochs) {
			return nil, err
		}
		if next, err = s.openMarked(ctx, next.at, candidateLimit); err != nil {
			return nil, err
		}
	}
}

// errUntoldEpochs is returned if an instance of the job may give admissions epochs of late frames.
var errUntoldEpochs = errors.New("epochs that workers have named since the job was created there may come next at it")

// awaitSettled returns when all workers have settled. It fails if the next generation, nil if there
// is none, is lost before it has begun, or may give admissions an epoch of late frames.
func (s *server) awaitSettled(ctx context.Context, next *harvesting) error {
	var lost chan error
	if next != nil {
		lost = next.lost
	}
	for !s.service.AllSettled() {
		select {
		case err := <-lost:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(settledEvery):
		}
	}
	if next != nil && mayRepeat(uint16(next.job.Epoch), next.used, s.service.UsedEpochs()) {
		return errUntoldEpochs
	}
	return nil
}

// mayRepeat reports whether an aggregator that was told which epochs are used, and has given a job
// this one, may soon give one that is used, too: epochs follow one another.
func mayRepeat(epoch uint16, told, used []uint32) bool {
	const soon = 4096
	return slices.ContainsFunc(used, func(one uint32) bool {
		return uint16(one)-epoch < soon && !slices.Contains(told, one)
	})
}

// beginGeneration makes a generation the current one.
func (s *server) beginGeneration(ctx context.Context, cancel context.CancelCauseFunc, h *harvesting) error {
	s.prepareHarvests(ctx, h)
	err := s.loop.Do(ctx, func() {
		s.store.BeginGeneration(listInstances(h.listShares())...)
		s.service.Begin(h.job.Instance, h.at)
		s.generation.Store(h)
		if s.env.Machine.Began != nil {
			s.env.Machine.Began(h.at)
		}
	})
	if err != nil {
		return fmt.Errorf("beginning a generation: %w", err)
	}
	s.runGeneration(cancel, h)
	s.env.Log.Info("the job goes on at an aggregator again", "job", h.job.ID, "control",
		s.env.Config.Aggregators()[h.at].Control)
	return nil
}
