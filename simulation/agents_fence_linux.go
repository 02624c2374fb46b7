// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/num/portable"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// fenceBook is what one server's life knows of its switch: when the newest bank was swapped, when
// the bank was of which the store has the sums, and whether the job goes on without the switch.
// Times are turns of the world.
type fenceBook struct {
	of        *agentRun // the server
	store     *ps.Store
	number    [2]uint64    // of its last harvest
	swapped   atomic.Int64 // stored in calls, which may run beside a turn
	harvested int64
	fenced    bool
}

// noteHarvest notes which harvests the store has. It is called after each turn of the server.
func (f *fenceBook) noteHarvest() {
	if f.store == nil || f.of.Dead() || f.fenced {
		return
	}
	instance, number := f.store.LastHarvest()
	if now := [2]uint64{instance, number}; now != f.number {
		f.number, f.harvested = now, f.swapped.Load()
	}
}

// notedSwaps is the data plane of a switch whose swaps are noted.
type notedSwaps struct {
	aggregator.Plane
	of *agentRun
}

func (n notedSwaps) Swap(id uint16) (*aggregator.Bank, error) {
	bank, err := n.Plane.Swap(id)
	if err == nil && !n.of.Dead() {
		n.of.l.books.fence.swapped.Store(n.of.l.Step())
	}
	return bank, err
}

// serverFenced is called when a server goes on without its switch.
func (p *agentRun) serverFenced() {
	if f := &p.l.books.fence; f.of == p && !p.Dead() {
		f.noteHarvest()
		f.fenced = true
		p.l.result.Fences++
		p.l.Tell("%s goes on without the aggregator\n", p.Name())
		p.l.repeatSteps(p)
	}
}

// repeatSteps makes copies of the agents' last ends of steps arrive again, most of them while the
// agents settle: by chance hardly any does.
func (l *agentsLife) repeatSteps(server *agentRun) {
	if l.plan.kinds&Late == 0 || l.Healed() {
		return
	}
	rng := l.options.named("late steps")
	for _, role := range l.roles {
		at := l.procs[role]
		if at == nil || at.sent.step == nil {
			continue
		}
		for range 3 {
			after := time.Duration(float64(100*time.Microsecond) * portable.Pow(300, rng.Float64()))
			step := bytes.Clone(at.sent.step)
			l.After(after, func() { l.Net.Repeat(at.Host(), server.Host(), step) })
		}
	}
}

// hasSettled is called when an agent has settled, or has joined a job without a switch.
func (p *agentRun) hasSettled() {
	if !p.Dead() {
		p.settled = true
	}
}

// isLost reports whether the hot rows of an acknowledged push may be lost: the switch that has
// acknowledged them has died, and the agent has died or was out of reach until the server gave it
// up, before a harvest or BARRIER had them, or the agent had settled. The death of one of them, or
// an agent that ends in another way, loses none.
func (b *stepBooks) isLost(s *ring, i int) bool {
	gone := s.at.Dead() || s.at.err != nil && b.l.happened&cut != 0
	if !b.fence.fenced || !gone || s.at.settled || s.entries[i].doneAt <= b.fence.harvested {
		return false
	}
	return !slices.ContainsFunc(s.entries[i:], func(e *asked) bool {
		return e.Op == agentproto.Barrier && e.done && e.c.Status == agentproto.OK
	})
}

// isHot reports whether a row of the job is hot.
func (b *stepBooks) isHot(key uint64) bool { return b.index[key] < b.l.plan.hot }

// spoilsMarks puts the fault [marksUnsummed] into the calls of an agent: the mark by which it
// settles has all frames that it has sent to the switch.
func (p *agentRun) spoilsMarks() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, req, reply, conn, o...)
		if r, ok := reply.(*pb.SettleResponse); ok && err == nil && r.Mark != nil && p.l.options.fault == marksUnsummed {
			nameAll(r.Mark, []*entry{{id: frameID{flowID: flowID{epoch: uint16(r.Mark.Epoch)}, seq: p.sent.newest}}})
		}
		return err
	})
}

// sentFrames is a [world.Watcher] that follows the frames that an agent sends.
type sentFrames struct {
	l      *agentsLife
	newest uint32 // number of those for the switch
	step   []byte // the last end of a step, nil if there is none
}

// Sends notes a frame.
func (s *sentFrames) Sends(to wire.Endpoint, payload []byte) {
	h, err := wire.ParseHeader(payload)
	switch {
	case err != nil:
	case to.IP == s.l.cfg.Switch.Address:
		s.newest = max(s.newest, h.Seq)
	case h.Type == wire.TypeStep:
		s.step = bytes.Clone(payload)
	}
}

// Gets does nothing.
func (*sentFrames) Gets([]link.Packet, bool) {}

// Answers does nothing.
func (*sentFrames) Answers([]link.Packet) {}

// Closes does nothing.
func (*sentFrames) Closes([]link.Packet) {}

var _ world.Watcher = &sentFrames{}
