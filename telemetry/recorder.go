// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Op is the kind of what is measured: a frame, or a whole push.
type Op uint8

// Operations.
const (
	Hot  Op = iota // a HOT frame
	Cold           // a COLD or COLD_AT frame
	Pull           // a PULL frame
	Find           // a FIND frame
	Push           // a call that pushes, with all its frames

	ops = iota
)

func (o Op) String() string { return name(int(o), opNames[:]...) }

var opNames = [ops]string{"hot", "cold", "pull", "find", "push"}

// MarshalText implements [encoding.TextMarshaler].
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (o *Op) UnmarshalText(text []byte) error {
	i := slices.Index(opNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("%q is none of the operations %v: is the other program a newer one?", text, opNames)
	}
	*o = Op(i)
	return nil
}

// Part is a part of an operation's time.
type Part uint8

// Parts. Those of frames, from WorkerQueue to ServerProcess, have the names of the IMC '20 paper on
// communication latency in distributed training, which calls them W_queue and so on.
const (
	Total             Part = iota // of a frame, from its first transmission until the worker has processed the answer
	Repeat                        // of a frame of which several copies were sent: from the first transmission to the last
	WorkerQueue                   // from the answer's arrival until the worker begins to process it
	WorkerProcess                 // of the answer
	ServerQueue                   // from the frame's arrival until it is processed, and then until its batch is answered
	ServerProcess                 // of the frame
	AggregatorProcess             // of the frame
	Submit                        // of a push, from the call to the first transmission
	Send                          // from then to the first transmission of its last frame
	Answer                        // from then to the last answer
	Network                       // of a frame, the rest of its total; see [Row]

	parts = iota
)

func (p Part) String() string {
	return name(int(p), "total", "repeat", "worker queue", "worker process", "server queue", "server process",
		"aggregator process", "submit", "send", "answer", "network")
}

func name(i int, names ...string) string {
	if i < len(names) {
		return names[i]
	}
	return strconv.Itoa(i)
}

// Peer is the other end of a flow.
type Peer uint32

// Peers other than workers and servers.
const (
	Aggregator Peer = 2<<16 + iota
	All             // of a push, whose frames go to several
	Others          // those without series of their own
)

// Worker returns the peer that is a worker, with its number.
func Worker(id uint16) Peer { return Peer(id) }

// Server returns the peer that is a parameter server, with its index.
func Server(index uint16) Peer { return 1<<16 | Peer(index) }

func (p Peer) String() string {
	switch {
	case p >= Aggregator:
		return name(int(p-Aggregator), "aggregator", "all", "other")
	case p >= 1<<16:
		return "server " + strconv.Itoa(int(p&0xffff))
	}
	return "worker " + strconv.Itoa(int(p))
}

// Key identifies a series of times.
type Key struct {
	Op   Op
	Part Part
	Peer Peer
}

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Op, o.Op), cmp.Compare(k.Part, o.Part), cmp.Compare(k.Peer, o.Peer))
}

// Series is a series of times.
type Series struct {
	Key
	Distribution
}

// MaxPeers is the number of workers and servers with series of their own. Jobs of more workers are
// possible, and the memory and whoever reads all series must be able to rely on a bound.
const MaxPeers = 64

// Recorder holds what an endpoint has measured. One goroutine calls Time and Write; any goroutine
// may call the other methods at any time.
type Recorder struct {
	Draw

	offset time.Duration
	unused atomic.Uint64 // stamps
	ring   *Ring         // by itself: large memory begins with a cache line, and so does each record
	shared atomic.Pointer[[]shared]
	loop   Loop // of the endpoint; may be nil
	shown  struct {
		sync.Mutex
		Load // what was returned last
	}

	peers    map[Peer]*peerTimes
	named    int        // workers and servers among them
	lastPeer Peer       // to which the last time belongs
	last     *peerTimes // where it was counted
}

// peerTimes are the histograms of a peer; nil ones have no time yet.
type peerTimes struct {
	peer  Peer
	times [ops][parts]*Histogram
}

// shared is a histogram that readers see.
type shared struct {
	key   Key
	times *Histogram
}

// NewRecorder returns a recorder for one frame of sample ([CheckSample]), or nil if that is 0. The
// endpoint measures with clock; kernel reads CLOCK_MONOTONIC, or returns false if it cannot. Both
// are nil in a simulation, whose records have no place in real time.
func NewRecorder(sample int, clock func() time.Duration, kernel func() (time.Duration, bool)) *Recorder {
	if sample == 0 {
		return nil
	}
	r := &Recorder{Draw: NewDraw(sample), ring: &Ring{}, peers: map[Peer]*peerTimes{}}
	if clock != nil {
		r.offset = clockOffset(clock, kernel)
	}
	r.shared.Store(&[]shared{})
	return r
}

// Time counts a time. The first one of a series allocates its histogram.
func (r *Recorder) Time(k Key, d time.Duration) {
	if r.last == nil || k.Peer != r.lastPeer {
		r.findPeer(k.Peer)
	}
	h := r.last.times[k.Op][k.Part]
	if h == nil {
		h = &Histogram{}
		r.last.times[k.Op][k.Part] = h
		k.Peer = r.last.peer
		all := append(slices.Clone(*r.shared.Load()), shared{k, h})
		slices.SortFunc(all, func(a, b shared) int { return a.key.compare(b.key) })
		r.shared.Store(&all)
	}
	h.Record(d)
}

// findPeer makes last the series of a peer: its own, or those of others.
func (r *Recorder) findPeer(p Peer) {
	r.lastPeer = p
	if r.last = r.peers[p]; r.last != nil {
		return
	}
	if p < Aggregator {
		if r.named == MaxPeers {
			r.findPeer(Others)
			r.lastPeer = p
			return
		}
		r.named++
	}
	r.last = &peerTimes{peer: p}
	r.peers[p] = r.last
}

// StampLimit is how old the stamp of a request may be. What waits for longer has been given up by
// its sender.
const StampLimit = 10 * time.Second

// Arrival returns when a packet arrived, on the endpoint's clock, and whether its stamp says so, a
// time of the kernel's clock or 0. A stamp that is later than received, or before the earliest time
// that is possible, is counted and not used: a clock was set, or is another one. Without a stamp
// the packet arrived when it was received.
func (r *Recorder) Arrival(stamp, earliest, received time.Duration) (at time.Duration, stamped bool) {
	if stamp == 0 {
		return received, false
	}
	at = stamp - r.offset
	if at > received || at < earliest {
		r.unused.Add(1)
		return received, false
	}
	return at, true
}

// UnusedStamps returns how many stamps cannot be true.
func (r *Recorder) UnusedStamps() uint64 {
	if r == nil {
		return 0
	}
	return r.unused.Load()
}

// Write keeps a record. Its Time is on the clock that the recorder was made with.
func (r *Recorder) Write(rec *Record) {
	rec.Time += r.offset
	r.ring.Write(rec)
}

// Series returns all series with a time, ordered by operation, part and peer.
func (r *Recorder) Series() (all []Series) {
	if r == nil {
		return nil
	}
	for _, s := range *r.shared.Load() {
		all = append(all, Series{s.key, s.times.Distribution()})
	}
	return all
}

// Records appends the last records to dst; see [Ring.Read].
func (r *Recorder) Records(dst []Record) (records []Record, torn int) {
	if r == nil {
		return dst, 0
	}
	return r.ring.Read(dst)
}
