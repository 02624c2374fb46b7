// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	rt "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// patience is how long a call waits for the switch.
const patience = 5 * time.Second

// client is the primary controller of one switch.
type client struct {
	target   string
	device   uint64
	election uint64
	names    *names
	loaded   atomic.Uint64 // the cookie of the program that load has loaded

	conn *grpc.ClientConn
	rpc  rt.P4RuntimeClient
	ctx  context.Context // ends with the client
	stop context.CancelFunc
	done chan struct{} // closed when keep has returned

	sending sync.Mutex // a stream takes one message at a time

	mu      sync.Mutex
	stream  rt.P4Runtime_StreamChannelClient // nil while there is none
	lost    error                            // why there is no stream, or why the client has failed
	changed chan struct{}                    // closed when stream or lost changes
	packets func(*rt.PacketIn)
}

// dial connects to a switch and becomes its primary controller.
func dial(o Options, n *names, packets func(*rt.PacketIn)) (*client, error) {
	conn, err := grpc.NewClient(o.Target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("p4: %s: %w", o.Target, err)
	}
	c := &client{
		target: o.Target, device: o.Device, election: o.Election, names: n,
		conn: conn, rpc: rt.NewP4RuntimeClient(conn),
		done: make(chan struct{}), changed: make(chan struct{}), packets: packets,
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	stream, err := c.openStream()
	if err != nil {
		c.stop()
		if status.Code(err) == codes.InvalidArgument { // P4Runtime 1.4, §5.3: an election ID has one controller
			err = fmt.Errorf("p4: %w at %s, with election ID %d: stop it, or take a higher one (--p4-election): %w",
				ErrNotPrimary, c.target, c.election, err)
		}
		return nil, errors.Join(err, conn.Close())
	}
	c.setStream(stream, nil)
	return c, nil
}

// openStream opens a stream and requests the primary role.
func (c *client) openStream() (rt.P4Runtime_StreamChannelClient, error) {
	ctx, cancel := context.WithCancel(c.ctx)
	timer := time.AfterFunc(patience, cancel)
	stream, err := c.rpc.StreamChannel(ctx)
	if err == nil {
		err = stream.Send(&rt.StreamMessageRequest{Update: &rt.StreamMessageRequest_Arbitration{
			Arbitration: &rt.MasterArbitrationUpdate{DeviceId: c.device, ElectionId: c.electionID()},
		}})
	}
	var answer *rt.StreamMessageResponse
	if err == nil || errors.Is(err, io.EOF) {
		answer, err = stream.Recv()
	}
	if !timer.Stop() && err != nil {
		err = status.Error(codes.DeadlineExceeded, "no answer to the arbitration")
	}
	if err != nil {
		cancel()
		return nil, c.explainError("arbitration", err)
	}
	if err := c.requirePrimary(answer.GetArbitration()); err != nil {
		cancel()
		return nil, err
	}
	return stream, nil
}

// requirePrimary returns an error unless an arbitration makes this controller the primary.
func (c *client) requirePrimary(a *rt.MasterArbitrationUpdate) error {
	switch {
	case a == nil:
		return fmt.Errorf("p4: arbitration: the switch at %s answered something else", c.target)
	case codes.Code(a.GetStatus().GetCode()) != codes.OK:
		return fmt.Errorf("p4: %w at %s, with election ID %d: stop it, or take a higher election ID than its (--p4-election)",
			ErrNotPrimary, c.target, a.GetElectionId().GetLow())
	}
	return nil
}

func (c *client) electionID() *rt.Uint128 { return &rt.Uint128{Low: c.election} }

// setStream records a change of the stream.
func (c *client) setStream(stream rt.P4Runtime_StreamChannelClient, lost error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream, c.lost = stream, lost
	close(c.changed)
	c.changed = make(chan struct{})
}

// keepStream receives from the stream until the client is closed. When the stream breaks it opens
// another, and calls check, which verifies that the switch is still the same. It fails if check
// does, or if another controller has taken over.
func (c *client) keepStream(check func() error) error {
	defer close(c.done)
	c.mu.Lock()
	stream := c.stream
	c.mu.Unlock()
	for {
		err := c.receivePackets(stream)
		if c.ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, ErrNotPrimary) {
			c.setStream(nil, err)
			return err
		}
		c.setStream(nil, c.explainError("stream", err))
		stream = nil
		for wait := 50 * time.Millisecond; stream == nil; wait = min(2*wait, time.Second) {
			select {
			case <-c.ctx.Done():
				return nil
			case <-time.After(wait):
			}
			stream, err = c.openStream()
			if errors.Is(err, ErrNotPrimary) {
				c.setStream(nil, err)
				return err
			}
		}
		for err = check(); errors.Is(err, ErrUnreachable); err = check() {
			select {
			case <-c.ctx.Done():
				return nil
			case <-time.After(50 * time.Millisecond):
			}
		}
		if err != nil {
			c.setStream(nil, err)
			return err
		}
		c.setStream(stream, nil)
	}
}

// receivePackets passes packets on until the stream ends.
func (c *client) receivePackets(stream rt.P4Runtime_StreamChannelClient) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch u := m.Update.(type) {
		case *rt.StreamMessageResponse_Packet:
			c.packets(u.Packet)
		case *rt.StreamMessageResponse_Arbitration:
			if err := c.requirePrimary(u.Arbitration); err != nil {
				return err
			}
		}
	}
}

// sendPackets sends packets into the switch's pipeline.
func (c *client) sendPackets(p *rt.PacketOut) error {
	c.mu.Lock()
	stream, lost := c.stream, c.lost
	c.mu.Unlock()
	if stream == nil {
		return lost
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	err := stream.Send(&rt.StreamMessageRequest{Update: &rt.StreamMessageRequest_Packet{Packet: p}})
	if errors.Is(err, io.EOF) {
		err = status.Error(codes.Unavailable, "the stream has ended")
	}
	return c.explainError("packet", err)
}

// requireReady returns an error if the switch cannot be written to at present.
func (c *client) requireReady() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// writeUpdates applies updates, one after the other.
func (c *client) writeUpdates(what string, updates ...*rt.Update) error {
	return c.changeEntries(what, patience, codes.OK, updates)
}

// insertAll inserts entries that never change: existing ones are the same.
func (c *client) insertAll(what string, updates []*rt.Update) error {
	return c.changeEntries(what, 6*patience, codes.AlreadyExists, updates)
}

// changeEntries sends updates in one message, with a time limit for the switch. An update may fail
// with the expected code.
func (c *client) changeEntries(what string, limit time.Duration, expected codes.Code, updates []*rt.Update) error {
	if err := c.requireReady(); err != nil {
		return fmt.Errorf("p4: %s: %w", what, err)
	}
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	_, err := c.rpc.Write(ctx, &rt.WriteRequest{DeviceId: c.device, ElectionId: c.electionID(), Updates: updates})
	return c.explainError(what, cause(err, expected))
}

// cause returns the error of the first update of a failed batch, unless it is the expected one; the
// error of the whole batch says only that there is one (P4Runtime 1.4, §12.3).
func cause(err error, expected codes.Code) error {
	updates := 0
	for _, d := range status.Convert(err).Details() {
		e, ok := d.(*rt.Error)
		if !ok {
			continue
		}
		updates++
		if code := codes.Code(e.CanonicalCode); code != codes.OK && code != expected {
			return status.Error(code, e.Message)
		}
	}
	if updates > 0 && expected != codes.OK {
		return nil
	}
	return err
}

// putEntry inserts an entry, or replaces the one with the same key, so that an insertion with a
// lost answer may be repeated.
func (c *client) putEntry(what string, e entry) error {
	m, err := c.names.tableEntry(e)
	if err != nil {
		return err
	}
	err = c.writeUpdates(what, update(rt.Update_INSERT, m))
	if status.Code(err) == codes.AlreadyExists {
		return c.writeUpdates(what, update(rt.Update_MODIFY, m))
	}
	return err
}

// modifyEntry replaces the action of an existing entry.
func (c *client) modifyEntry(what string, e entry) error {
	m, err := c.names.tableEntry(e)
	if err != nil {
		return err
	}
	return c.writeUpdates(what, update(rt.Update_MODIFY, m))
}

// removeEntry deletes an entry. A missing entry counts as deleted.
func (c *client) removeEntry(what string, e entry) error {
	m, err := c.names.tableEntry(e)
	if err != nil {
		return err
	}
	err = c.writeUpdates(what, update(rt.Update_DELETE, m))
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

func update(t rt.Update_Type, m *rt.TableEntry) *rt.Update {
	return &rt.Update{Type: t, Entity: &rt.Entity{Entity: &rt.Entity_TableEntry{TableEntry: m}}}
}

func (c *client) readEntities(what string, entities ...*rt.Entity) ([]*rt.Entity, error) {
	if err := c.requireReady(); err != nil {
		return nil, fmt.Errorf("p4: %s: %w", what, err)
	}
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	stream, err := c.rpc.Read(ctx, &rt.ReadRequest{DeviceId: c.device, Entities: entities})
	if err != nil {
		return nil, c.explainError(what, err)
	}
	var all []*rt.Entity
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, c.explainError(what, err)
		}
		all = append(all, r.Entities...)
	}
}

// closeStream ends the client. It waits for keep.
func (c *client) closeStream() error {
	c.stop()
	<-c.done
	return c.conn.Close()
}
