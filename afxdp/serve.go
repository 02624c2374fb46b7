// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import "errors"

// serveBatch is the largest number of packets for a call of the handler. It makes the costs of a
// call and of a check of the rings small compared with the packets'.
const serveBatch = 64

// Serve makes a loop for [Group.Run] from a function that handles packets as they arrive: it waits,
// receives, calls handle with the packets, sends those that handle passed to [Socket.Send], and
// returns frames to the fill ring.
//
// The packets are handle's until it returns, their frames are "yours": handle may change the bytes
// ([UMEM.Packet]), the descriptors and their order, and may Send them. Packets that it did not send
// are dropped, as are those for which Send has no room, which only handle can count. It may also
// send frames of [Socket.Pool]. To keep a received packet for longer, copy it, or write your own
// loop. If handle returns an error, which the loop then returns, its sent packets are still
// transmitted.
//
// The loop returns when a method of the socket fails: with net.ErrClosed after Close. An error of
// handle ends all loops of a Group ([Group.Run]), so it should not return one because of an
// unusable packet.
func Serve(handle func(s *Socket, packets []Desc) error) func(*Socket) error {
	return func(s *Socket) error {
		turn := serveTurn{
			s: s, handle: handle,
			packets: make([]Desc, serveBatch), received: make([]Frame, 0, serveBatch), sent: make([]Frame, serveBatch),
		}
		// Surplus frames of Fill and Refill also wait for packets from now on.
		s.unfilled = max(0, s.unfilled)
		for {
			if err := turn.runTurn(); err != nil {
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

func (t *serveTurn) runTurn() error {
	want := EventRx
	if t.s.InFlight() > 0 {
		// Nothing else would return their frames to the fill ring.
		want |= EventCompletion
	}
	if _, err := t.s.Poll(want, -1); err != nil {
		return err
	}
	if err := t.refillSent(); err != nil {
		return err
	}
	n, err := t.s.Receive(t.packets)
	if err != nil {
		return err
	}
	if n == 0 { // there may have been frames without packets
		return t.replaceFrames()
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
		return failed // alone: joined with an ErrLinkDown, it would make Run continue
	}
	return err
}

// giveBack puts received frames that handle did not send in the fill ring, and others in place of
// those that it used in other ways.
func (t *serveTurn) giveBack() error {
	rest := t.received[:0]
	for _, f := range t.received {
		if t.s.state[f] == stateYours {
			rest = append(rest, f)
		}
	}
	if err := t.fillReceived(rest); err != nil {
		return err
	}
	return t.replaceFrames()
}

// replaceFrames puts frames of the pool in the fill ring in place of those that will not return by
// themselves.
func (t *serveTurn) replaceFrames() error {
	lack := t.s.unfilled - t.s.InFlight()
	if lack <= 0 {
		return nil
	}
	_, err := t.s.Refill(lack)
	return err
}

// refillSent puts sent frames in the fill ring.
func (t *serveTurn) refillSent() error {
	n, err := t.s.Completed(t.sent)
	if n == 0 || err != nil {
		return err
	}
	return t.fillReceived(t.sent[:n])
}

// fillReceived puts as many frames in the fill ring as were received, and the others in the pool:
// handle took as many from there.
func (t *serveTurn) fillReceived(frames []Frame) error {
	n, err := t.s.Fill(frames[:min(len(frames), max(0, t.s.unfilled))])
	if errors.Is(err, ErrFrameState) || errors.Is(err, ErrRingCorrupt) {
		return err
	}
	return errors.Join(err, t.s.pool.Free(frames[n:]...)) // otherwise a restarted loop, or another socket, would miss them
}
