package push

import (
	"context"
	"time"

	"github.com/libra-ina/libra/bench/harness"
)

// reading is the state of all counters at a moment.
type reading struct {
	marks      []mark        // of the workers and, last, the server
	own        mark          // of this process, which holds the aggregator's control service
	aggregator time.Duration // for which its program ran
	softirq    uint64        // ns, of the threads that run what interrupts leave over
}

func (r *run) read(ctx context.Context, c *cluster) (now reading, err error) {
	if now.own, err = ownMark(0); err != nil {
		return now, err
	}
	if now.aggregator, err = r.bed.aggregator.RunTime(); err != nil {
		return now, err
	}
	if now.softirq, err = harness.SoftirqTime(); err != nil {
		return now, err
	}
	now.marks, err = c.marks(ctx)
	return now, err
}

// pushes returns the number of all pushes that were acknowledged.
func (r *reading) pushes() (n uint64) {
	for _, m := range r.marks {
		n += m.Pushes
	}
	return n
}

// newSample makes a sample from two readings.
//
// Nothing is counted twice: the aggregator's program runs in the context of
// whichever process sent a frame, or of a ksoftirqd, so its time is taken from
// the kernel's. The baselines have no aggregator; what this process needs beside
// them is the measurement's.
func newSample(baseline string, before, after reading, batch int) Sample {
	var rate, user, kernel, server float64 // pairs, and CPU ns, per second
	for i, b := range before.marks {
		a := after.marks[i]
		seconds := float64(a.At-b.At) / 1e9
		kernel += float64(a.Kernel-b.Kernel) / seconds
		if i == len(before.marks)-1 {
			server = float64(a.User-b.User) / seconds
			break
		}
		rate += float64(a.Pushes-b.Pushes) * float64(batch) / seconds
		user += float64(a.User-b.User) / seconds
	}
	seconds := float64(after.own.At-before.own.At) / 1e9
	kernel += float64(after.softirq-before.softirq) / seconds
	program := float64(after.aggregator-before.aggregator) / seconds
	daemon := float64(after.own.User-before.own.User+after.own.Kernel-before.own.Kernel) / seconds
	if baseline != Libra {
		program, daemon = 0, 0
	}
	return Sample{PairsPerSecond: rate, Cost: Cost{
		NsWorker:     harness.Quotient(user, rate),
		NsKernel:     harness.Quotient(max(0, kernel-program), rate),
		NsAggregator: harness.Quotient(program+daemon, rate),
		NsServer:     harness.Quotient(server, rate),
	}}
}
