package scaled

import (
	"errors"
	"fmt"
)

// MaxWorkers is the largest number of workers: their ids have 16 bits.
const MaxWorkers = 1 << 16

// Errors of a negotiation.
var (
	ErrWorkers   = errors.New("scaled: bad number of workers")
	ErrWorker    = errors.New("scaled: no such worker")
	ErrIteration = errors.New("scaled: iteration is not under negotiation")
	ErrConflict  = errors.New("scaled: worker has reported another exponent")
)

// Negotiation is the coordinator's side: it collects the workers' exponents and
// decides the scale of one iteration after the other, beginning with iteration
// 0. Reports and answers may be lost and repeated: a worker repeats its report
// until it has the answer. It is not safe for concurrent use.
type Negotiation struct {
	iteration uint32
	reported  []int16 // exponent by worker, or none
	missing   int

	// The iteration before, for workers that have missed the answer. No worker
	// needs an older one: it has reported for this one since.
	decided  bool
	previous Scale
	last     []int16 // the reports that led to it
}

const none = -1

// NewNegotiation returns the negotiation between workers 0 to workers-1.
func NewNegotiation(workers int) (*Negotiation, error) {
	if workers < 1 || workers > MaxWorkers {
		return nil, fmt.Errorf("%w: %d is not in [1, %d]", ErrWorkers, workers, MaxWorkers)
	}
	n := &Negotiation{reported: make([]int16, workers), last: make([]int16, workers)}
	n.expect()
	return n, nil
}

// expect forgets the reports.
func (n *Negotiation) expect() {
	for i := range n.reported {
		n.reported[i] = none
	}
	n.missing = len(n.reported)
}

// Iteration returns the iteration under negotiation.
func (n *Negotiation) Iteration() uint32 { return n.iteration }

// Missing returns how many workers have not reported for it.
func (n *Negotiation) Missing() int { return n.missing }

// Report takes a worker's largest exponent for an iteration. If decided is true,
// scale is the iteration's: to be sent to all workers if the iteration was under
// negotiation, which is then the next one, and to this worker again if it was
// the one before. A refused report changes nothing.
func (n *Negotiation) Report(worker int, iteration uint32, largest uint8) (scale Scale, decided bool, err error) {
	if worker < 0 || worker >= len(n.reported) {
		return Scale{}, false, fmt.Errorf("%w: %d of %d", ErrWorker, worker, len(n.reported))
	}
	if largest == infinite {
		return Scale{}, false, fmt.Errorf("%w: %d, from worker %d", ErrExponent, largest, worker)
	}
	var known int16
	switch {
	case iteration == n.iteration:
		known = n.reported[worker]
	case n.decided && iteration == n.iteration-1:
		known = n.last[worker]
	default:
		return Scale{}, false, fmt.Errorf("%w: worker %d reports for %d, expected %d", ErrIteration, worker, iteration, n.iteration)
	}
	if known != none && known != int16(largest) {
		return Scale{}, false, fmt.Errorf("%w: worker %d, iteration %d: %d, before %d", ErrConflict, worker, iteration, largest, known)
	}
	if iteration != n.iteration {
		return n.previous, true, nil
	}
	if known != none {
		return Scale{}, false, nil
	}
	n.reported[worker] = int16(largest)
	n.missing--
	if n.missing > 0 {
		return Scale{}, false, nil
	}
	return n.decide()
}

// decide ends the iteration.
func (n *Negotiation) decide() (Scale, bool, error) {
	var largest int16
	for _, e := range n.reported {
		largest = max(largest, e)
	}
	scale, err := ScaleFor(uint8(largest), len(n.reported))
	if err != nil {
		return Scale{}, false, err
	}
	n.previous, n.decided = scale, true
	n.reported, n.last = n.last, n.reported
	n.iteration++
	n.expect()
	return scale, true, nil
}
