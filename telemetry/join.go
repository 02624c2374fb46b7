// SPDX-License-Identifier: Apache-2.0

package telemetry

import "time"

// Row is what is known of a frame when the records of both its ends are joined: the worker's, and
// in a Whole row how its total is spent. Then WorkerQueue, WorkerProcess, ServerQueue,
// ServerProcess and Network add up to Total.
type Row struct {
	Record // the worker's, whose Queue and Process are WorkerQueue and WorkerProcess

	State         State
	ServerQueue   time.Duration
	ServerProcess time.Duration
	ServerStamped bool // as Stamped, of ServerQueue
	// Network is the rest of the total: links, switch, and what cards and kernels queue. Of a frame to
	// the aggregator it includes the aggregator, which keeps no records.
	Network time.Duration
}

// State says which parts of a [Row] are known.
type State uint8

// States of rows.
const (
	Whole     State = iota
	Resent          // the frame was sent more than once: only the total and Repeat are known
	Half            // the server's record was not found: Network includes what the server did
	Ambiguous       // the server served more than one copy, though one was sent: as Half
)

func (s State) String() string { return name(int(s), "whole", "repeated", "half", "ambiguous") }

// Joined counts what a [Joiner] made of the records.
type Joined struct {
	// Rows by state.
	Whole, Resent, Half, Ambiguous uint64
	// Impossible rows would have had a negative part; they are left out. A clock was set meanwhile, or
	// records of two different frames had all in common that identifies one.
	Impossible uint64
	// Unclaimed are records of servers without one of a worker: its answer was lost, or it was not
	// asked.
	Unclaimed uint64
}

// Joiner joins the records of the two ends of frames. Records may come in any order, in rounds: a
// record waits for its other half until the end of the next round but one. Time is never compared
// between the two ends.
type Joiner struct {
	Joined

	workers map[frame]waiting
	servers map[frame]waiting
	round   int
}

// frame identifies a frame.
type frame struct {
	job, worker, server, epoch uint16
	number                     uint32
}

// waiting is a record that waits for its other half.
type waiting struct {
	Record
	round  int // in which it came
	copies int // of the frame that the server served
}

func frameOf(r *Record) frame { return frame{r.Job, r.Worker, r.Server, r.Epoch, r.Number} }

// patience is for how many rounds a record waits, so that the order in which processes are asked
// does not matter.
const patience = 2

// NewJoiner returns a joiner without records.
func NewJoiner() *Joiner {
	return &Joiner{workers: map[frame]waiting{}, servers: map[frame]waiting{}}
}

// AddWorker adds a record of a worker.
func (j *Joiner) AddWorker(r Record) { j.workers[frameOf(&r)] = waiting{Record: r, round: j.round} }

// AddServer adds a record of a server.
func (j *Joiner) AddServer(r Record) {
	at := frameOf(&r)
	j.servers[at] = waiting{Record: r, round: j.round, copies: j.servers[at].copies + 1}
}

// EndRound appends the rows that are complete to dst, and those whose other half has not come. With
// last, nothing is waited for any longer.
func (j *Joiner) EndRound(dst []Row, last bool) []Row {
	due := func(w waiting) bool { return last || j.round-w.round >= patience }
	for at, w := range j.workers {
		other, found := j.servers[at]
		if !found && at.server != NoServer && !w.Repeated && !due(w) {
			continue
		}
		delete(j.workers, at)
		delete(j.servers, at)
		if row, ok := j.rowOf(w.Record, other, found); ok {
			dst = append(dst, row)
		}
	}
	for at, w := range j.servers {
		if due(w) {
			delete(j.servers, at)
			j.Unclaimed++
		}
	}
	j.round++
	return dst
}

// rowOf joins a worker's record with the server's, if it is found.
func (j *Joiner) rowOf(r Record, other waiting, found bool) (Row, bool) {
	row := Row{Record: r, State: Whole}
	count := &j.Whole
	switch {
	case r.Repeated:
		row.State, count = Resent, &j.Resent
		if r.Repeat < 0 || r.Repeat > r.Total {
			count = &j.Impossible
		}
		*count++
		return row, count == &j.Resent
	case r.Server == NoServer:
	case !found:
		row.State, count = Half, &j.Half
	case other.copies > 1 || other.Repeated:
		row.State, count = Ambiguous, &j.Ambiguous
	default:
		row.ServerQueue, row.ServerProcess, row.ServerStamped = other.Queue, other.Process, other.Stamped
	}
	row.Network = r.Total - r.Queue - r.Process - row.ServerQueue - row.ServerProcess
	if min(row.Network, r.Queue, r.Process, row.ServerQueue, row.ServerProcess) < 0 {
		j.Impossible++
		return Row{}, false
	}
	*count++
	return row, true
}
