// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/cluster"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// addParents decides which of the switches harvest others of them, in the place of the server.
func (n *neighbour) addParents() {
	rng, all, always := n.c.options.named("neighbour's parents"), n.cfg.Switches, n.c.options.fault.isOfTrees()
	for i := 1; i < len(all); i++ {
		if rng.IntN(3) > 0 || always {
			all[i].Parent = all[rng.IntN(i)].Name
		}
	}
	if last := len(all) - 1; last > 0 && rng.IntN(4) == 0 && !always { // the first one has a parent
		all[last].Parent, all[0].Parent = "", all[last].Name
	}
}

// withoutParent returns the neighbour's file, in which a switch is no other's parent.
func (n *neighbour) withoutParent(name string) *cluster.Config {
	cfg := n.cfg
	cfg.Switches = slices.Clone(cfg.Switches)
	for i := range cfg.Switches {
		if cfg.Switches[i].Parent == name {
			cfg.Switches[i].Parent = ""
		}
	}
	return &cfg
}

// isOfTrees reports whether a fault is of switches that harvest others.
func (f fault) isOfTrees() bool { return f == acknowledgesChild || f == addsChildTwice }

// harvestsChildren puts the life's fault into the harvests of a switch from another.
func (p *process) harvestsChildren() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn,
		method string, open grpc.Streamer, o ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, conn, method, o...)
		isSwitch := p.role == theSwitch || p.c.neighbour != nil && slices.Contains(p.c.neighbour.names[theirSwitch:], p.role)
		if err == nil && method == pb.Aggregator_Harvest_FullMethodName && isSwitch && p.c.options.fault.isOfTrees() {
			s = &childStream{ClientStream: s, of: p, conn: conn}
		}
		return s, err
	})
}

// childStream is a stream by which a switch harvests another.
type childStream struct {
	grpc.ClientStream
	of     *process
	conn   *grpc.ClientConn
	frames uint64 // of the newest harvest
	broken bool
	again  bool // it has begun with one that the parent has added before
}

// errChildStream is how such a stream breaks.
var errChildStream = status.Error(codes.Unavailable, "transport is closing")

// SendMsg sends a message.
func (s *childStream) SendMsg(m any) error {
	req, ok := m.(*pb.HarvestRequest)
	if !ok || s.of.c.options.fault != addsChildTwice {
		return s.ClientStream.SendMsg(m)
	}
	if begin := req.GetBegin(); begin != nil {
		if _, s.again = s.of.forgotten.LoadAndDelete(s.conn); s.again {
			begin.Last--
		}
	}
	if _, done := req.What.(*pb.HarvestRequest_Done); done && s.frames > 0 && !s.again {
		s.broken, s.frames = true, 0
		s.of.forgotten.Store(s.conn, true) // the acknowledgement is lost, and the parent forgets it
		return nil
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg receives a message.
func (s *childStream) RecvMsg(m any) error {
	if s.broken {
		return errChildStream
	}
	err := s.ClientStream.RecvMsg(m)
	chunk, ok := m.(*pb.HarvestChunk)
	if !ok || err != nil || !chunk.Last {
		return err
	}
	s.frames = chunk.Frames
	if s.of.c.options.fault == acknowledgesChild && chunk.Frames > 0 { // and then the parent does not get it
		err := s.ClientStream.SendMsg(&pb.HarvestRequest{What: &pb.HarvestRequest_Done{Done: chunk.Number}})
		time.Sleep(10 * time.Millisecond)
		if err == nil {
			err = errChildStream
		}
		return err
	}
	return nil
}
