package soak

import (
	"errors"
	"fmt"
	"time"
)

// ErrFailed is wrapped by Run's error where a check failed; Report.Failures has
// the findings.
var ErrFailed = errors.New("soak: failed")

// Report is the outcome of a run. It marshals to one JSON object.
type Report struct {
	Duration time.Duration `json:"duration_ns"` // that it took
	Seed     uint64        `json:"seed"`
	Window   int           `json:"window"`
	Bound    time.Duration `json:"bound_ns"`
	Rounds   int           `json:"rounds"`

	Links []*LinkReport `json:"links"`
	// Events are what happened, in order.
	Events []Event `json:"events"`
	// Recoveries sum the events up by link and kind.
	Recoveries []Recovery `json:"recoveries"`
	// Accounts is how often the frames of a UMEM were counted; Leaked is the
	// largest number found missing, or counted twice, and has to be 0.
	Accounts int `json:"accounts"`
	Leaked   int `json:"leaked_frames"`
	// Stalls are queues that had no answer within the bound.
	Stalls []Stall `json:"stalls"`
	// Memory of this process, and of the server that lived longest.
	Memory []Growth `json:"memory"`
	// Allocations is their number for each packet answered in undisturbed time,
	// everything in this process included.
	Allocations float64 `json:"allocations_per_packet"`
	// Failures are the findings of all checks in words; empty if all is well.
	Failures []string `json:"failures"`
}

// LinkReport is what happened to the packets of a link.
type LinkReport struct {
	Link   string `json:"link"`
	Queues int    `json:"queues"`

	Sent     uint64 `json:"sent"`     // by the clients
	Answered uint64 `json:"answered"` // came back whole
	// Dropped are in the drop counters of the interfaces, for transmission, and
	// of the sockets, for reception, each packet once.
	Dropped int64 `json:"dropped"`
	// Interfaces are the drop counters of both interfaces. Those for reception
	// also have packets that are in the other end's for transmission, and those
	// that went to the kernel's stack while nobody else wanted them.
	Interfaces map[string]uint64 `json:"interfaces"`
	// Destroyed were in rings that an event destroyed, or came while nobody was
	// there to take them: neither answered nor dropped.
	Destroyed int64 `json:"destroyed"`
	// Unexplained are those in undisturbed time and over changes of MTU. It has
	// to be 0.
	Unexplained int64  `json:"unexplained"`
	Corrupt     uint64 `json:"corrupt"` // or answered twice; has to be 0

	// Rate is in packets per second of undisturbed time.
	Rate float64 `json:"rate_pps"`
	// RoundTrip is of undisturbed time.
	RoundTrip Times `json:"round_trip"`
	// LostWakeups are packets of undisturbed time that lay waiting while their
	// receiver slept until Poll's own time was over. It has to be 0.
	LostWakeups uint64 `json:"lost_wakeups"`
	// LateArrivals are packets of undisturbed time whose receiver was asleep for
	// too long, whoever was to blame, and Latest is the longest of these times.
	LateArrivals uint64        `json:"late_arrivals"`
	Latest       time.Duration `json:"latest_ns"`
	// Sockets are the counters of the AF_XDP sockets, of both ends, that were
	// above 0: the causes behind the drops at interfaces.
	Sockets map[string]uint64 `json:"sockets"`
}

// Event is something that happened to a link.
type Event struct {
	At   time.Duration `json:"at_ns"` // since the run began
	Link string        `json:"link"`
	Kind string        `json:"kind"`
	// Recovery is the time from when the disturbance began to be put right
	// until every queue had an answer to a packet sent after that.
	Recovery time.Duration `json:"recovery_ns"`
	Sent     uint64        `json:"sent"`    // around the event
	Lost     int64         `json:"lost"`    // of these
	Dropped  int64         `json:"dropped"` // of the lost, those in the kernel's counters
}

// Recovery sums up the events of one kind on one link.
type Recovery struct {
	Link  string `json:"link"`
	Kind  string `json:"kind"`
	Times Times  `json:"times"`
	Sent  uint64 `json:"sent"`
	Lost  int64  `json:"lost"`
}

// Stall is a queue without an answer for longer than the bound.
type Stall struct {
	At     time.Duration `json:"at_ns"`
	Link   string        `json:"link"`
	During string        `json:"during"` // the event, or "undisturbed time"
	Waits  string        `json:"waits"`  // what waits on what
}

// Memory is what a process holds after a garbage collection.
type Memory struct {
	Heap        uint64 `json:"heap_bytes"`
	Objects     uint64 `json:"heap_objects"`
	Mallocs     uint64 `json:"mallocs"` // since the process began
	Descriptors int    `json:"descriptors"`
	Goroutines  int    `json:"goroutines"`
}

// Growth compares what a process held after its warm-up with what it held at
// last.
type Growth struct {
	Process string `json:"process"`
	Samples int    `json:"samples"`
	First   Memory `json:"first"`
	Last    Memory `json:"last"`
}

func newReport(cfg Config) *Report {
	return &Report{
		Seed: cfg.Seed, Window: cfg.Window, Bound: cfg.Bound,
		Links: []*LinkReport{}, Events: []Event{}, Recoveries: []Recovery{}, Stalls: []Stall{},
		Memory: []Growth{}, Failures: []string{},
	}
}

func (r *Report) fail(format string, args ...any) {
	r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
}

// err is Run's error: the findings, shortly.
func (r *Report) err() error {
	switch n := len(r.Failures); n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%w: %s", ErrFailed, r.Failures[0])
	default:
		return fmt.Errorf("%w: %s; and %d more", ErrFailed, r.Failures[0], n-1)
	}
}
