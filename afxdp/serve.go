// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import "errors"

// serveBatch is how many packets a handler gets at most. It is enough for the
// costs of a call and of a look at the rings to be small beside the packets'.
const serveBatch = 64

// Serve makes a loop for [Group.Run] of a function that handles packets as they come: it
// waits, receives, calls handle with what came, sends what handle gave to [Socket.Send],
// and gives frames back to be filled.
//
// The packets are handle's until it returns, their frames are "yours": handle may change
// the bytes ([UMEM.Packet]), the descriptors and their order, and may Send them. Those that
// it did not send are dropped, as are those that Send has no room for, which only handle can count. It may also send frames of
// [Socket.Pool]. To keep a received packet for longer, copy it, or write a loop of your
// own. With an error, which the loop returns, packets that were sent go out nevertheless.
//
// The loop returns when a method of the socket fails: with net.ErrClosed after Close. An error
// of handle ends all loops of a Group ([Group.Run]), so a packet that it cannot use is no reason
// for one.
func Serve(handle func(s *Socket, packets []Desc) error) func(*Socket) error {
	return func(s *Socket) error {
		turn := serveTurn{
			s: s, handle: handle,
			packets: make([]Desc, serveBatch), received: make([]Frame, 0, serveBatch), sent: make([]Frame, serveBatch),
		}
		// What was filled beyond that, by Fill and Refill, is to wait for packets from now on, too.
		s.unfilled = max(0, s.unfilled)
		for {
			if err := turn.run(); err != nil {
				return err
			}
		}
	}
}

type serveTurn struct {
	s        *Socket
	handle   func(*Socket, []Desc) error
	packets  []Desc
	received []Frame // of packets, which handle may change
	sent     []Frame
}

func (t *serveTurn) run() error {
	want := EventRx
	if t.s.InFlight() > 0 {
		// Nothing else would bring their frames back to be filled.
		want |= EventCompletion
	}
	if _, err := t.s.Poll(want, -1); err != nil {
		return err
	}
	if err := t.refill(); err != nil {
		return err
	}
	n, err := t.s.Receive(t.packets)
	if err != nil {
		return err
	}
	if n == 0 { // there may have been frames that are no packets
		return t.replace()
	}
	t.received = t.received[:n]
	for i, d := range t.packets[:n] {
		t.received[i] = d.Frame
	}
	failed := t.handle(t.s, t.packets[:n])
	if err = t.giveBack(); err == nil {
		err = t.s.Kick()
	}
	if failed != nil {
		return failed // alone: with an ErrLinkDown beside it Run would go on
	}
	return err
}

// giveBack gives received frames that handle did not send back to be filled, and others in the place of those that it gave away otherwise.
func (t *serveTurn) giveBack() error {
	rest := t.received[:0]
	for _, f := range t.received {
		if t.s.state[f] == stateYours {
			rest = append(rest, f)
		}
	}
	if err := t.fill(rest); err != nil {
		return err
	}
	return t.replace()
}

// replace gives frames of the pool to be filled in the place of those that will not come back by themselves.
func (t *serveTurn) replace() error {
	lack := t.s.unfilled - t.s.InFlight()
	if lack <= 0 {
		return nil
	}
	_, err := t.s.Refill(lack)
	return err
}

// refill gives frames that were sent back to be filled.
func (t *serveTurn) refill() error {
	n, err := t.s.Completed(t.sent)
	if n == 0 || err != nil {
		return err
	}
	return t.fill(t.sent[:n])
}

// fill gives as many frames to the fill ring as there were received, and the others to the pool: handle had as many from there.
func (t *serveTurn) fill(frames []Frame) error {
	n, err := t.s.Fill(frames[:min(len(frames), max(0, t.s.unfilled))])
	if errors.Is(err, ErrFrameState) || errors.Is(err, ErrRingCorrupt) {
		return err
	}
	return errors.Join(err, t.s.pool.Free(frames[n:]...)) // they would be lost to a loop that begins anew, or to another socket
}
