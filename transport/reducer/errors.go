// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/libra-ina/libra/wire"
)

var (
	// ErrConfig is wrapped by errors that name a missing or invalid field.
	ErrConfig = errors.New("reducer: bad configuration")
	// ErrUse is wrapped by errors of calls with other widths than the job's, or out of order. They
	// change nothing.
	ErrUse = errors.New("reducer: wrong call")
)

// membersLimit is how long an error waits for the names of the workers that are missing.
const membersLimit = 2 * time.Second

// deaf is the number of repetitions without an answer that make an aggregator silent.
const deaf = 8

// ValueError refuses values before they are sent: one of them is not finite, or out of the range of
// the job's sums.
type ValueError struct {
	Index int
	Value float32
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("reducer: value %d is %v, which the job's sums do not hold; nothing was sent: scale the values down, or give the job a larger exponent",
		e.Index, e.Value)
}

// OutOfStepError ends the Reducers of all workers, of which not all have put the same operations
// into a frame: they have made different calls of Queue, Start and Barrier, or of Wait for what was
// queued. No wrong sum has been returned.
type OutOfStepError struct {
	Op    Op  // the first of the frame
	Count int // of this worker's operations in it
}

func (e *OutOfStepError) Error() string {
	which := fmt.Sprintf("operation %d", e.Op)
	if e.Count > 1 {
		which = fmt.Sprintf("operations %d to %d", e.Op, e.Op+Op(e.Count)-1)
	}
	return fmt.Sprintf("reducer: the frame with %s has other operations at other workers: all must make the same calls of Queue, Start and Barrier, and of Wait for what is queued; then start all workers of the job again",
		which)
}

// RefusedError ends a Reducer whose contribution, or word that it has a result, the aggregator
// refuses.
type RefusedError struct {
	Op          Op
	Aggregator  netip.AddrPort
	Job, Sender uint16
	Refusal     wire.Refusal
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("reducer: aggregator %v, job %d, sender %d: operation %d is refused: %v", e.Aggregator, e.Job, e.Sender,
		e.Op, e.Refusal)
	if remedy := e.Refusal.Code.Remedy(); remedy != "" {
		text += ": " + remedy
	}
	return text
}

// refused returns the error for a frame that is refused. A refusal of a value names its operation.
func (r *Reducer[T]) refused(g *group, why wire.Refusal) error {
	op := g.op
	if why.Code == wire.CodeNotFinite || why.Code == wire.CodeOverflow {
		width := uint16(r.cfg.Shape.Width)
		op, why.Index = op+Op(why.Index/width), why.Index%width
	}
	return &RefusedError{Op: op, Aggregator: r.from, Job: r.cfg.Job, Sender: r.cfg.Sender, Refusal: why}
}

// Unwrap returns the refusal.
func (e *RefusedError) Unwrap() error { return e.Refusal }

// MissingError ends a Reducer that has had no result for too long, although it repeated its
// contributions.
type MissingError struct {
	Op Op // the first that has no result
	// Taken means, with Shape.Acked, that Op has its result, and that Missing have not told that
	// they have it.
	Taken  bool
	Waited time.Duration
	// Silent means that the aggregator has not answered either.
	Silent     bool
	Aggregator netip.AddrPort
	// Missing are the workers that have not contributed to Op, or have not its result, as far as is
	// known: nil, if the aggregator does not tell or Unnamed is not nil.
	Missing []uint16
	// Absent is how many workers the job has not admitted yet; they are missing too.
	Absent int
	// Unnamed is why the missing workers cannot be named, or nil.
	Unnamed error
	LinkErr error // the last error of sending, or nil
}

func (e *MissingError) Error() string {
	var b strings.Builder
	lacks := "has no result"
	if e.Taken {
		lacks = "has a result that is not at all workers"
	}
	fmt.Fprintf(&b, "reducer: operation %d %s after %v of repetitions: ", e.Op, lacks, e.Waited.Round(time.Millisecond))
	if e.Silent {
		fmt.Fprintf(&b, "the aggregator %v does not answer: is it running and reachable?", e.Aggregator)
	} else {
		b.WriteString(e.who())
	}
	if e.LinkErr != nil {
		fmt.Fprintf(&b, " The last error of sending was: %v.", e.LinkErr)
	}
	return b.String()
}

// who tells which workers are missing.
func (e *MissingError) who() string {
	const remedy = ": start all workers of the job again."
	var who []string
	did := "did not contribute"
	if e.Taken {
		did = "did not tell to have it"
	}
	if len(e.Missing) > 0 {
		who = append(who, numbered("worker", e.Missing)+" "+did)
	}
	if e.Absent > 0 {
		who = append(who, fmt.Sprintf("%d of the job's workers did not join it", e.Absent))
	}
	switch {
	case e.Unnamed != nil:
		return fmt.Sprintf("other workers %s (%v)%s", did, e.Unnamed, remedy)
	case who == nil:
		return "other workers " + did + ", and the aggregator does not tell which" + remedy
	}
	return strings.Join(who, ", and ") + remedy
}

// numbered lists numbers after a noun: "worker 3", "workers 1, 2 and 7".
func numbered(noun string, numbers []uint16) string {
	var texts []string
	for _, n := range numbers {
		texts = append(texts, strconv.Itoa(int(n)))
	}
	if len(texts) == 1 {
		return noun + " " + texts[0]
	}
	last := len(texts) - 1
	return noun + "s " + strings.Join(texts[:last], ", ") + " and " + texts[last]
}

// missing returns the error for an operation that has had no result for too long.
func (r *Reducer[T]) missing(g *group) error {
	if g.stuck >= r.cfg.Limit/2 { // nobody else is to blame
		return r.noRoom()
	}
	e := &MissingError{
		Op: g.op, Taken: g.unconfirmed, Waited: r.silent, Silent: !g.answered || g.ignored >= deaf, Aggregator: r.from,
		LinkErr: r.link.Stats().LastError,
	}
	if e.Silent || g.contributed == 0 {
		return e
	}
	if r.cfg.Members == nil {
		e.Unnamed = errors.New("the Reducer has no list of the job's members that would name them")
		return e
	}
	ctx, cancel := context.WithTimeout(context.Background(), membersLimit)
	defer cancel()
	members, err := r.cfg.Members(ctx)
	if err != nil {
		e.Unnamed = fmt.Errorf("the list of the job's members is not available: %w", err)
		return e
	}
	for position, id := range members {
		if g.contributed>>position&1 == 0 {
			e.Missing = append(e.Missing, id)
		}
	}
	e.Absent = max(0, r.cfg.Shape.Workers-len(members))
	return e
}
