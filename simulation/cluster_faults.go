// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/ps"
)

// Faults of harvests, fences and settlements. They change what processes tell each other, and what
// the server's store is given.

// clientFaults put the life's fault into the calls of a process.
func (p *process) clientFaults() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption,
	) error {
		if p.c.options.fault == namesNoInstance {
			switch req := req.(type) {
			case *pb.BarrierRequest:
				req.Instance = 0
			case *pb.ReportRequest:
				req.Instance = 0
			}
		}
		err := invoke(ctx, method, req, reply, conn, o...)
		if r, ok := reply.(*pb.SettleResponse); ok && err == nil && r.Mark != nil {
			p.spoilMark(r.Mark)
		}
		return err
	})
}

// spoilMark puts the life's fault into the mark by which a worker settles.
func (p *process) spoilMark(m *pb.HarvestMark) {
	a := p.c.accounts
	p.c.Mu.Lock()
	defer p.c.Mu.Unlock()
	switch p.c.options.fault {
	case asksEarly: // before the first harvest
		m.Newest, m.Applied = 0, append([]byte{1}, make([]byte, len(m.Applied)-1)...)
	case marksUnsummed:
		if a.store != nil && a.store.taken[p] != nil {
			nameAll(m, a.store.taken[p])
		}
	}
}

// nameAll makes a mark have all frames up to the newest one of some.
func nameAll(m *pb.HarvestMark, frames []*entry) {
	for _, e := range frames {
		if e.id.epoch == uint16(m.Epoch) {
			m.Newest = max(m.Newest, e.id.seq)
		}
	}
	m.Applied = slices.Repeat([]byte{0xff}, len(m.Applied))
}

// serverFaults put the life's fault into the streams of a process's services.
func (p *process) serverFaults() grpc.ServerOption {
	return grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
		handle grpc.StreamHandler,
	) error {
		return handle(srv, &faultyStream{ServerStream: stream, c: p.c, of: p})
	})
}

type faultyStream struct {
	grpc.ServerStream
	c   *clusterLife
	of  *process // whose service it is
	job uint32   // whose harvests it brings
}

// isSecondShare reports whether the stream brings the harvests of a neighbour's share that is not
// its only one.
func (s *faultyStream) isSecondShare() bool {
	n := s.c.neighbour
	return s.job == theirJob+1 || s.job == theirJob && n != nil && slices.Contains(n.names, s.of.role)
}

// RecvMsg receives a message.
func (s *faultyStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if req, ok := m.(*pb.HarvestRequest); ok && err == nil && req.GetBegin() != nil {
		s.job = req.GetBegin().Job
	}
	return err
}

// SendMsg sends a message.
func (s *faultyStream) SendMsg(m any) error {
	switch m := m.(type) {
	case *pb.HarvestChunk:
		fault := s.c.options.fault
		if m.Request > 0 && (fault == answersOlder || fault == commitsWithout && s.isSecondShare()) {
			m.Request++ // the end of the next step does not wait for its own
		}
		if fault == numbersTogether && s.job >= theirJob && s.c.neighbour.hasNumber(s, m.Number) {
			m.Sums, m.Gaps = nil, nil // it is taken for one that comes again
		}
	case *pb.Membership:
		if s.c.options.fault == freesAnswered && m.Committed != nil {
			s.c.nameApplied(m.Committed)
		}
	}
	return s.ServerStream.SendMsg(m)
}

// nameApplied makes a mark have all frames that the switch has acknowledged.
func (c *clusterLife) nameApplied(m *pb.HarvestMark) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	var applied []*entry
	for _, e := range c.accounts.sent[c.procs[workerName(uint16(m.Sender))]] {
		if e.applied && isAggregator(e.id.to.Name()) {
			applied = append(applied, e)
		}
	}
	nameAll(m, applied)
}

// generationFenced puts the life's fault into the store of a server that goes on without its
// aggregator.
func (p *process) generationFenced() {
	p.c.accounts.fenceInstance(p)
	if p.c.options.fault == harvestsLate {
		p.applyLate()
	}
}

// generationBegan puts the life's fault into the store of a server that goes on at an aggregator
// again.
func (p *process) generationBegan() {
	p.c.accounts.beginInstance(p)
	if p.c.options.fault == harvestsFormer {
		p.applyLate()
	}
}

// applyLate gives the store another harvest of the newest generation that has brought it any.
func (p *process) applyLate() {
	st := p.c.accounts.store
	if st == nil || st.of != p {
		return
	}
	defer st.store.BeginGeneration(st.store.Generation()...)
	instance, number := st.store.LastHarvest()
	st.store.BeginGeneration(instance)
	late := ps.Harvest{Instance: instance, Number: number + 1, Ranks: []uint32{0}, Sums: []int64{1 << 16}}
	_, err := st.store.ApplyHarvest(late, []uint64{p.c.accounts.hot.Key(0)})
	if err != nil {
		p.c.Fail("a harvest after the fence: %v", err)
	}
}
