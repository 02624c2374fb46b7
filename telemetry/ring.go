// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"sync/atomic"
	"time"
)

// ringSize is the number of records that a ring keeps: at a million frames a second, of which one
// in 64 is drawn, those of the last half second.
const ringSize = 8192

// Record is what one end measured of a drawn frame. Job, Worker, Server, Epoch and Number identify
// the frame: the records of its two ends have them in common.
type Record struct {
	// Time is when the record was made, in the kernel's CLOCK_MONOTONIC.
	Time   time.Duration `json:"time_ns"`
	Job    uint16        `json:"job"`
	Worker uint16        `json:"worker"`
	Server uint16        `json:"server"` // its index; [NoServer] of frames to the aggregator
	Epoch  uint16        `json:"epoch"`  // of the worker's admission
	Number uint32        `json:"number"`
	Op     Op            `json:"op"`
	// Repeated marks a frame of which several copies were sent. Its parts are unknown, because so
	// is which copy was answered.
	Repeated bool `json:"repeated,omitempty"`
	// Stamped says that Queue begins when the packet arrived at the host. Otherwise it begins when the
	// endpoint received the packet from its link.
	Stamped bool `json:"stamped,omitempty"`

	// Queue and Process are the parts that were spent at this end; a worker has none of a frame that
	// is Repeated.
	Queue   time.Duration `json:"queue_ns"`
	Process time.Duration `json:"process_ns"`
	// Repeat is, at a worker, the time from the first transmission to the last of a frame that is
	// Repeated.
	Repeat time.Duration `json:"repeat_ns,omitempty"`
	// Total is, at a worker, the time from the first transmission to the end of Process; at a
	// server the sum of its parts.
	Total time.Duration `json:"total_ns"`

	Request  uint32 `json:"request_bytes"` // sizes of the payloads
	Response uint32 `json:"response_bytes"`
}

// NoServer is the server of frames to the aggregator.
const NoServer = 1<<16 - 1

const recordWords = 8

// slot holds a record in seven words. The first word is one more than the number of the record in
// the ring, and 0 while it is being written.
type slot [recordWords]atomic.Uint64

// Ring keeps the last 8,192 records of an endpoint, in half a megabyte. One goroutine writes;
// others may read at the same time.
type Ring struct {
	slots [ringSize]slot
	next  uint64 // the writer's
}

// Write adds a record, in place of the oldest.
func (r *Ring) Write(rec *Record) {
	s := &r.slots[r.next%ringSize]
	r.next++
	s[0].Store(0)
	s[1].Store(uint64(rec.Number)<<32 | uint64(rec.Epoch)<<16 | uint64(rec.Job))
	kind := uint64(rec.Op)
	if rec.Repeated {
		kind |= repeatedBit
	}
	if rec.Stamped {
		kind |= stampedBit
	}
	queue := rec.Queue
	if rec.Repeat != 0 {
		kind, queue = kind|repeatBit, rec.Repeat
	}
	s[2].Store(uint64(rec.Worker)<<32 | uint64(rec.Server)<<16 | kind)
	s[3].Store(uint64(rec.Time))
	s[4].Store(uint64(rec.Total))
	s[5].Store(uint64(queue))
	s[6].Store(uint64(rec.Process))
	s[7].Store(uint64(rec.Request)<<32 | uint64(rec.Response))
	s[0].Store(r.next)
}

const (
	repeatedBit = 1 << 8
	repeatBit   = 1 << 9 // the word of Queue has Repeat
	stampedBit  = 1 << 10
)

// Read appends the ring's records to dst, in no particular order. Records that the writer replaces
// meanwhile are left out, and torn is their number.
func (r *Ring) Read(dst []Record) (records []Record, torn int) {
	for i := range r.slots {
		switch rec, state := r.slots[i].read(); state {
		case whole:
			dst = append(dst, rec)
		case replaced:
			torn++
		}
	}
	return dst, torn
}

// state is what a reader finds in a slot.
type state uint8

const (
	unused state = iota
	whole
	replaced // by the writer, at the same time
)

func (s *slot) read() (rec Record, found state) {
	var w [recordWords]uint64
	for i := range w {
		w[i] = s[i].Load()
	}
	switch {
	case s[0].Load() != w[0] || w[0] == 0 && w[1] != 0:
		return rec, replaced
	case w[0] == 0:
		return rec, unused
	}
	rec = Record{
		Number: uint32(w[1] >> 32), Epoch: uint16(w[1] >> 16), Job: uint16(w[1]),
		Worker: uint16(w[2] >> 32), Server: uint16(w[2] >> 16), Op: Op(w[2]),
		Repeated: w[2]&repeatedBit != 0, Stamped: w[2]&stampedBit != 0,
		Time: time.Duration(w[3]), Total: time.Duration(w[4]), Queue: time.Duration(w[5]), Process: time.Duration(w[6]),
		Request: uint32(w[7] >> 32), Response: uint32(w[7]),
	}
	if w[2]&repeatBit != 0 {
		rec.Queue, rec.Repeat = 0, rec.Queue
	}
	return rec, whole
}
