// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"time"
)

// Without barriers, harvests end the steps. Those of several shares belong together: the server
// asks all shares each job.harvest, and ends the step when all have answered, or when another
// period has passed. What comes later is in the step that is open then.

// timedSteps are such steps. They belong to the loop's goroutine.
type timedSteps struct {
	answered map[uint64]uint64 // the newest request of each share whose harvest is applied, by instance
	open     *askedStep        // nil: all have answered
}

// askedStep is a step for which all shares have been asked.
type askedStep struct {
	requests map[uint64]uint64 // by instance
	reports  map[uint16]uint64 // of workers before that
}

func newTimedSteps() *timedSteps { return &timedSteps{answered: map[uint64]uint64{}} }

// noteHarvest notes which request of a share a harvest answers, which is applied.
func (t *timedSteps) noteHarvest(share, request uint64) {
	t.answered[share] = max(t.answered[share], request)
}

// closeShare notes that all sums of a share are harvested, and that nothing is pushed to it any
// more. That answers all requests.
func (t *timedSteps) closeShare(share uint64) { t.noteHarvest(share, math.MaxUint64) }

// haveAnswered reports whether all shares have answered.
func (t *timedSteps) haveAnswered(of *askedStep) bool {
	for share, request := range of.requests {
		if t.answered[share] < request {
			return false
		}
	}
	return true
}

// askOthers asks shares that have lost their parents since the open step was asked for. Only the
// loop's goroutine may call it.
func (s *server) askOthers(h *harvesting) {
	if s.timed == nil || s.timed.open == nil {
		return
	}
	for _, one := range harvested(h.listShares()) {
		if _, is := s.timed.open.requests[one.job.Instance]; !is {
			s.timed.open.requests[one.job.Instance] = one.Ask()
		}
	}
}

// endTimedStep ends a step that has everything that was acknowledged before these reports.
func (s *server) endTimedStep(reports map[uint16]uint64) {
	s.commitStep()
	s.progress.settleUpTo(reports)
}

// endAnswered ends the step for which all shares have been asked, if all have answered.
func (s *server) endAnswered() {
	if of := s.timed.open; of != nil && s.timed.haveAnswered(of) {
		s.timed.open = nil
		s.endTimedStep(of.reports)
	}
}

// harvestByTime harvests from the shares of a generation until that ends.
func (s *server) harvestByTime(h *harvesting) {
	for tick := time.Tick(s.env.Config.Job.Harvest); ; {
		select {
		case <-tick:
		case <-h.ctx.Done():
			return
		}
		var late bool
		err := s.loop.Do(h.ctx, func() {
			if late = s.timed.open != nil; late {
				s.commitStep()
			}
		})
		if err != nil {
			return // the loop has ended, which ends the server
		}
		if late { // the others go on meanwhile
			for _, one := range harvested(h.listShares()) {
				one.AskOnce()
			}
			continue
		}
		next := &askedStep{reports: s.progress.takeReports(), requests: map[uint64]uint64{}}
		for _, one := range harvested(h.listShares()) { // what was reported is at one of these, or harvested
			next.requests[one.job.Instance] = one.Ask()
		}
		err = s.loop.Do(h.ctx, func() {
			s.timed.open = next
			s.askOthers(h)
			s.endAnswered()
		})
		if err != nil {
			return
		}
	}
}
