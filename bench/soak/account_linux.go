package soak

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/bench/harness"
)

// account is where the frames of a UMEM are at a moment when nothing moves, and
// what its ports have counted since the account before.
type account struct {
	Frames int              // of the UMEM
	Pool   int              // free, in the pools of all ports
	Rings  afxdp.RingCounts // entries in the rings of all ports
	Census afxdp.Census     // by the state bytes
	Counts counts

	// Of the server's process only.
	Memory Memory
	PID    int
}

// counts are what the ports of an end counted.
type counts struct {
	Sent         uint64 // packets that the sockets took
	Corrupt      uint64
	FirstCorrupt string // what was wrong with the first one
	Late         uint64 // and the next two as in LinkReport
	LostWakeups  uint64
	Latest       time.Duration
	// Sockets are the counters of the sockets, without what a socket counted
	// between its last account and its end.
	Sockets map[string]uint64
}

func (c *counts) add(d counts) {
	c.Sent += d.Sent
	c.Corrupt += d.Corrupt
	if c.FirstCorrupt == "" {
		c.FirstCorrupt = d.FirstCorrupt
	}
	c.Late += d.Late
	c.LostWakeups += d.LostWakeups
	c.Latest = max(c.Latest, d.Latest)
	if c.Sockets == nil {
		c.Sockets = map[string]uint64{}
	}
	for name, n := range d.Sockets {
		c.Sockets[name] += n
	}
}

// leaked returns how many frames are missing or counted twice. With nothing
// moving, the program holds none either.
func (a *account) leaked() int {
	rings := a.Rings
	return max(
		abs(a.Frames-a.Pool-rings.Fill-rings.Rx-rings.Tx-rings.Completion),
		abs(a.Census.Free-a.Pool),
		abs(a.Census.Filling-rings.Fill-rings.Rx),
		abs(a.Census.InFlight-rings.Tx-rings.Completion),
		a.Census.Yours,
	)
}

func abs(n int) int { return max(n, -n) }

// String gives the frames.
func (a *account) String() string {
	return fmt.Sprintf("%d frames: pools %d, fill %d, RX %d, TX %d, completion %d; by state: free %d, yours %d, filling %d, in flight %d",
		a.Frames, a.Pool, a.Rings.Fill, a.Rings.Rx, a.Rings.Tx, a.Rings.Completion,
		a.Census.Free, a.Census.Yours, a.Census.Filling, a.Census.InFlight)
}

// settleStep is the time between two looks at a port that is to come to rest.
const settleStep = time.Millisecond

// account waits until nothing is on its way to or from the ports, holds them
// all, and counts. No packets may be on their way to them.
func (e *end) account(ctx context.Context) (*account, error) {
	a := &account{Frames: e.umem.Frames()}
	release := make(chan struct{})
	var holding sync.WaitGroup
	defer holding.Wait()
	defer close(release)
	for _, p := range e.ports {
		if err := p.settle(ctx); err != nil {
			return nil, err
		}
		var err error
		held := make(chan struct{})
		// The call returns after the census, for which all ports have to stand still.
		holding.Go(func() {
			_ = p.ask(ctx, func() {
				p.enter(doingHold)
				err = p.add(a)
				close(held)
				<-release
				p.enter(doingWork)
			})
		})
		select {
		case <-held:
		case <-ctx.Done():
			return nil, fmt.Errorf("soak: queue %d of %s cannot be stopped: %s: %w", p.queue, e.ifname, p.where(), context.Cause(ctx))
		}
		if err != nil {
			return nil, err
		}
	}
	a.Census = e.umem.Census()
	return a, nil
}

// settle waits until a port has nothing on its way.
func (p *port) settle(ctx context.Context) error {
	for {
		var (
			settled bool
			waits   string
		)
		if err := p.ask(ctx, func() {
			if settled = p.role.settled(); !settled {
				waits = p.role.status()
			}
		}); err != nil {
			return err
		}
		if settled {
			return nil
		}
		if err := harness.Sleep(ctx, settleStep); err != nil {
			return fmt.Errorf("soak: queue %d of %s does not come to rest: %s, %s: %w", p.queue, p.end.ifname, p.where(), waits, err)
		}
	}
}

// Socket counters of packets that are lost: there was no frame or no entry for
// them.
const (
	socketRxDropped = "RX dropped"
	socketRxFull    = "RX ring full"
)

// add adds the port's share to an account. It runs on the port's goroutine.
func (p *port) add(a *account) error {
	s := p.sock.Load()
	rings, err := s.Rings()
	if err != nil {
		return err
	}
	st, err := s.Stats()
	if err != nil {
		return err
	}
	a.Pool += p.pool.Available()
	a.Rings.Fill += rings.Fill
	a.Rings.Rx += rings.Rx
	a.Rings.Tx += rings.Tx
	a.Rings.Completion += rings.Completion
	counters := map[string]uint64{
		"driver refused":   st.TxDropped,
		"send stalls":      st.TxStalls,
		"bad RX entries":   st.BadDescs,
		"bad completions":  st.BadCompletions,
		socketRxDropped:    st.Kernel.RxDropped,
		socketRxFull:       st.Kernel.RxRingFull,
		"fill ring empty":  st.Kernel.FillRingEmpty,
		"bad fill entries": st.Kernel.RxInvalidDescs,
		"bad TX entries":   st.Kernel.TxInvalidDescs,
	}
	p.counts.Sockets = growth(p.reported, counters)
	p.reported = counters
	a.Counts.add(p.counts)
	p.counts = counts{}
	return nil
}

// growth returns by how much the counters that grew did.
func growth(before, after map[string]uint64) map[string]uint64 {
	grown := harness.Difference(before, after)
	maps.DeleteFunc(grown, func(_ string, n uint64) bool { return n == 0 })
	return grown
}
