// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"sync"
	"time"

	"github.com/libra-ina/libra/wire"
)

// fault is an error that a test puts into a life, to check that it is found.
type fault string

const (
	appliesTwice      fault = "the server adds a frame twice"
	acknowledgesOnly  fault = "the server acknowledges a frame without adding it"
	spoilsRow         fault = "a pull brings a row that the store does not hold"
	sameEpoch         fault = "all admissions have the same epoch"
	harvestsTwice     fault = "a harvest that comes again has another number"
	clearsEarly       fault = "a bank is cleared although its harvest was lost"
	staleNumbers      fault = "rows have other numbers, but the numbering is the same"
	addsRefused       fault = "the server adds a frame that it refuses"
	takesTheirs       fault = "a job has units of another job of its switch"
	givesTheirs       fault = "another job of the switch has units that it did not add"
	losesMark         fault = "a harvest does not name the newest frame of a worker"
	forgetsWithdrawn  fault = "a harvest does not name the frames of a worker that was withdrawn"
	harvestsLate      fault = "a harvest is applied after the fence"
	asksEarly         fault = "a worker settles by a mark from before the harvests"
	marksUnsummed     fault = "a worker settles by a mark whose sums are not applied"
	freesAnswered     fault = "a worker's log drops frames that the switch has acknowledged"
	namesNoInstance   fault = "ends of steps and reports do not name the instance of their frames"
	harvestsFormer    fault = "a harvest of a former generation is applied in the next one"
	keepsAdmissions   fault = "a frame from before a rewind is added after it"
	keepsBanks        fault = "a job that is created again has the sums of its former instance"
	answersOlder      fault = "a harvest answers the request after its own"
	commitsWithout    fault = "a step is committed without the sums of a share"
	closesEarly       fault = "a share is closed before a worker has left it"
	acknowledgesChild fault = "a switch acknowledges the harvest of another before its own is acknowledged"
	addsChildTwice    fault = "a switch adds the harvest of another again"
	numbersTogether   fault = "one number is kept for the harvests of all shares"
	panics            fault = "the server panics"
	panicsLate        fault = "a timer of the server panics"
	overtakes         fault = "a push behind the end of a step is sent before that is answered"
	forgetsTorn       fault = "a step that parties have torn is committed"
	finishes          fault = "an agent that is stopped counts as one that has finished"
	startsOver        fault = "a host that comes back begins with the first step"
	spoilsSum         fault = "a contribution has another value than its worker's"
	misnames          fault = "workers are called by the numbers of others"
	staysAbsent       fault = "a worker says that it is in the operation before its own"
	noFilter          fault = "the aggregator has no duplicate filter"
	shortFilter       fault = "the duplicate filter is shorter than the operations in flight"
	keepsSlots        fault = "the aggregator does not zero a group"
	keepsTakers       fault = "workers that have taken a result have taken the next one"
	anyTaken          fault = "TAKEN counts for any round"
	anySums           fault = "a worker takes the sums of any round"
	anyConfirmation   fault = "a worker takes the confirmation of any round"
	takesTwice        fault = "a worker takes a result twice"
	startsEarly       fault = "a worker contributes before all have the result before"
	mute              fault = "repeated frames are not answered"
	locksItselfOut    fault = "the server waits for its own lock"
)

// handler is the life's current store, which may treat one frame in sixteen wrongly.
type handler struct{ *server }

// isDue reports whether it is time for a fault.
func (h *handler) isDue(which fault) bool {
	return h.life.options.fault == which && h.life.ledger.applied%16 == 15
}

func (h *handler) Accumulate(rows wire.Rows) error {
	if err := h.isRoom(rows); err != nil {
		if h.life.options.fault == addsRefused {
			return errors.Join(err, h.store.Accumulate(rows))
		}
		return err
	}
	return h.applyRows(rows, h.store.Accumulate)
}

func (h *handler) AccumulateAt(rows wire.Rows) error {
	if h.life.options.fault == staleNumbers {
		rows.Numbering = h.store.Find(nil, nil)
	}
	return h.applyRows(rows, h.store.AccumulateAt)
}

func (h *handler) applyRows(rows wire.Rows, add func(wire.Rows) error) error {
	switch {
	case h.isDue(acknowledgesOnly):
		return nil
	case h.isDue(panics):
		panic(panics)
	case h.isDue(panicsLate):
		time.AfterFunc(time.Microsecond, func() { panic(panicsLate) })
	case h.isDue(locksItselfOut):
		var mu sync.Mutex
		mu.Lock()
		mu.Lock()
	}
	err := add(rows)
	if h.isDue(appliesTwice) && err == nil {
		err = add(rows)
	}
	return err
}

func (h *handler) Read(keys []uint64, dst []float32) {
	h.store.Read(keys, dst)
	if h.isDue(spoilsRow) {
		dst[len(dst)-1]++
	}
}

func (h *handler) Find(keys []uint64, numbers []uint32) uint32 {
	numbering := h.store.Find(keys, numbers)
	if h.life.options.fault == staleNumbers {
		return 1
	}
	return numbering
}
