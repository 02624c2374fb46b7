package soak

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/libra-ina/libra/afxdp"
)

// Account is where the frames of a UMEM are at a moment when nothing moves, and
// what its ports counted until then.
type Account struct {
	Frames int `json:"frames"` // of the UMEM
	Pool   int `json:"pool"`   // free, in the pools of all ports
	// Rings are the entries in the rings of all ports.
	Rings afxdp.RingCounts `json:"rings"`
	// Census is what the state bytes say.
	Census afxdp.Census `json:"census"`

	Sent    uint64 `json:"sent"` // packets that the sockets took
	Corrupt uint64 `json:"corrupt"`
	// FirstCorrupt says what was wrong with the first one.
	FirstCorrupt string        `json:"first_corrupt,omitempty"`
	Late         uint64        `json:"late"` // as in LinkReport
	Latest       time.Duration `json:"latest_ns"`
	LostWakeups  uint64        `json:"lost_wakeups"`

	// Sockets are the counters of the sockets, without what they counted
	// between the last account and their end.
	Sockets map[string]uint64 `json:"sockets"`

	incarnation int // of the process
}

func (a *Account) counts() counts {
	return counts{corrupt: a.Corrupt, late: a.Late, lostWakeups: a.LostWakeups, latest: a.Latest, sockets: a.Sockets}
}

// Leaked returns how many frames are missing or counted twice; 0 is what it
// has to be. With nothing moving, the program holds none either.
func (a *Account) Leaked() int {
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
func (a *Account) String() string {
	return fmt.Sprintf("%d frames: pools %d, fill %d, RX %d, TX %d, completion %d; by state: free %d, yours %d, filling %d, in flight %d",
		a.Frames, a.Pool, a.Rings.Fill, a.Rings.Rx, a.Rings.Tx, a.Rings.Completion,
		a.Census.Free, a.Census.Yours, a.Census.Filling, a.Census.InFlight)
}

// settleStep is how often a port that is to come to rest is looked at.
const settleStep = time.Millisecond

// account waits until the ports have nothing on its way, stops them all, and
// counts. Nobody may be sending to them.
func (e *end) account(ctx context.Context, roles []role) (*Account, error) {
	a := &Account{Frames: e.umem.Frames(), Sockets: map[string]uint64{}}
	release := make(chan struct{})
	var holding sync.WaitGroup
	defer holding.Wait()
	defer close(release)
	for i, p := range e.ports {
		if err := p.settle(ctx, roles[i]); err != nil {
			return nil, err
		}
		var err error
		held := make(chan struct{})
		// The call returns after the census, which needs everybody to stand still.
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
			return nil, fmt.Errorf("soak: queue %d of %s cannot be stopped: %s: %w", p.queue, e.ifname, p.status(), context.Cause(ctx))
		}
		if err != nil {
			return nil, err
		}
	}
	a.Census = e.umem.Census()
	return a, nil
}

// settle waits until a port has nothing on its way.
func (p *port) settle(ctx context.Context, r role) error {
	for {
		var (
			settled bool
			waits   string
		)
		if err := p.ask(ctx, func() {
			if settled = r.settled(); !settled {
				waits = r.status()
			}
		}); err != nil {
			return err
		}
		if settled {
			return nil
		}
		if err := pause(ctx, settleStep); err != nil {
			return fmt.Errorf("soak: queue %d of %s does not come to rest: %s, %s: %w", p.queue, p.end.ifname, p.status(), waits, err)
		}
	}
}

// Socket counters that the clients' and servers' losses are made of.
const (
	socketRxDropped = "RX dropped"
	socketRxFull    = "RX ring full"
)

// add adds the port's share to an account. It runs on the port's goroutine.
func (p *port) add(a *Account) error {
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
	a.Sent += p.sent
	a.Corrupt += p.corrupt
	a.Late += p.late
	a.LostWakeups += p.lostWakeups
	a.Latest = max(a.Latest, p.latest)
	if p.firstCorrupt != nil && a.FirstCorrupt == "" {
		a.FirstCorrupt = p.firstCorrupt.Error()
	}
	p.counters = map[string]uint64{
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
	for _, counters := range []map[string]uint64{p.past, p.counters} {
		for name, n := range counters {
			a.Sockets[name] += n
		}
	}
	return nil
}
