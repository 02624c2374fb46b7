package soak

import (
	"fmt"
	"time"
)

// counts are what the AF_XDP end of a link has counted.
type counts struct {
	corrupt, late, lostWakeups uint64
	latest                     time.Duration
	sockets                    map[string]uint64
}

func (c *counts) add(d counts) {
	c.corrupt += d.corrupt
	c.late += d.late
	c.lostWakeups += d.lostWakeups
	c.latest = max(c.latest, d.latest)
	if c.sockets == nil {
		c.sockets = map[string]uint64{}
	}
	for name, n := range d.sockets {
		c.sockets[name] += n
	}
}

// history adds up what one process after the other counted at an end, from
// accounts that each process gives of its whole life.
type history struct {
	past        counts
	last        counts
	incarnation int
}

// update takes an account and returns what was found since the one before.
func (h *history) update(incarnation int, c counts) (corrupt, lostWakeups uint64) {
	if incarnation != h.incarnation {
		h.past.add(h.last)
		h.last, h.incarnation = counts{}, incarnation
	}
	corrupt, lostWakeups = c.corrupt-h.last.corrupt, c.lostWakeups-h.last.lostWakeups
	h.last = c
	return corrupt, lostWakeups
}

// total returns what was counted in all.
func (h *history) total() counts {
	var c counts
	c.add(h.past)
	c.add(h.last)
	return c
}

// memoryWatch compares what a process holds after its warm-up with what it
// holds later, one process after the other.
type memoryWatch struct {
	process     string
	warmUp      int // samples of each process that do not count
	skipped     int
	growth      Growth // of the current process
	longest     Growth // of the process with most samples
	incarnation int
}

// add takes a sample. It returns an error if it is the first one of a new
// process and the one before had grown.
func (w *memoryWatch) add(incarnation int, m Memory) error {
	var err error
	if incarnation != w.incarnation {
		err = w.end()
		w.incarnation = incarnation
	}
	if w.skipped < w.warmUp {
		w.skipped++
		return err
	}
	if w.growth.Samples == 0 {
		w.growth.First, w.growth.Process = m, w.process
	}
	w.growth.Last = m
	w.growth.Samples++
	return err
}

// end closes the current process's record and returns an error if it has grown.
func (w *memoryWatch) end() error {
	err := w.growth.check()
	if w.growth.Samples > w.longest.Samples {
		w.longest = w.growth
	}
	w.growth, w.skipped = Growth{}, 0
	return err
}

// heapSlack is by how much a heap may grow over a run: the report itself grows
// with each event.
const heapSlack = 1 << 20

// check returns an error that says what has grown.
func (g *Growth) check() error {
	var what string
	if g.Last.Heap > g.First.Heap+heapSlack {
		what += fmt.Sprintf(", heap from %d to %d bytes", g.First.Heap, g.Last.Heap)
	}
	if g.Last.Descriptors != g.First.Descriptors {
		what += fmt.Sprintf(", descriptors from %d to %d", g.First.Descriptors, g.Last.Descriptors)
	}
	if g.Last.Goroutines != g.First.Goroutines {
		what += fmt.Sprintf(", goroutines from %d to %d", g.First.Goroutines, g.Last.Goroutines)
	}
	if what == "" {
		return nil
	}
	return fmt.Errorf("soak: the memory of the %s changed over %d rounds%s", g.Process, g.Samples, what)
}
