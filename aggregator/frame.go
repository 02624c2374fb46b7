// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/wire"
)

// Sizes of the reply buffers that the caller of Process and ProcessPayload
// provides, in bytes.
const (
	MaxReplyPayload = wire.HeaderLen + wire.MaxStripes*wire.StripeLen
	MaxReply        = wire.EnvelopeLen + vlanLen + MaxReplyPayload
)

// Offsets and values of the fields that identify the content of an Ethernet frame.
const (
	etherType     = 12
	vlanLen       = 4
	ipv4Dst       = 16
	etherTypeIPv4 = 0x0800
	etherTypeVLAN = 0x8100
)

// Action is what happens to a frame.
type Action uint8

const (
	// Pass leaves the frame to the kernel, untouched.
	Pass Action = iota
	// Drop consumes the frame without an answer.
	Drop
	// Reply consumes the frame and sends an answer out of the port on which the frame arrived.
	Reply
	// Forward sends the frame out of another port, untouched.
	Forward
	// Broadcast consumes the frame and sends the answer to all senders of its job: one copy to each
	// port with a sender behind it, including the port on which the frame arrived.
	Broadcast
)

var actionNames = [...]string{Pass: "pass", Drop: "drop", Reply: "reply", Forward: "forward", Broadcast: "broadcast"}

func (a Action) String() string { return enumName("Action", actionNames[:], uint8(a)) }

// Verdict is the decision about a frame.
type Verdict struct {
	Action Action
	Port   int    // of Forward
	Job    uint16 // of Broadcast: to whose senders
}

func (v Verdict) String() string {
	switch v.Action {
	case Forward:
		return fmt.Sprintf("forward to port %d", v.Port)
	case Broadcast:
		return fmt.Sprintf("broadcast to job %d", v.Job)
	}
	return v.Action.String()
}

// Process is [Model.ProcessFrom] for a frame that arrived on port 0.
func (m *Model) Process(frame, reply []byte) (v Verdict, n int) {
	return m.ProcessFrom(0, frame, reply)
}

// ProcessFrom processes one Ethernet frame (without the frame check sequence) that arrived on a
// port, and applies it if it is a valid HOT, SCALE or TAKEN frame. If the verdict is [Reply] or
// [Broadcast], the first n bytes of reply are the frame to send. reply must have at least
// [MaxReply] bytes and must not overlap the frame, which is not changed.
func (m *Model) ProcessFrom(port int, frame, reply []byte) (v Verdict, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := wire.ParseFrame(frame, m.port)
	if errors.Is(err, wire.ErrForeign) {
		m.counters.Passed++
		return Verdict{Action: Pass}, 0
	}
	if !m.isDestination(frame) {
		if to, ok := m.forwardFrame(port, frame); ok {
			m.counters.Forwarded++
			return Verdict{Action: Forward, Port: to}, 0
		}
		m.counters.Passed++
		return Verdict{Action: Pass}, 0
	}
	switch {
	case errors.Is(err, wire.ErrPartialChecksum):
		m.counters.PartialChecksum++
		return Verdict{Action: Drop}, 0
	case errors.Is(err, wire.ErrChecksum):
		m.counters.BadChecksum++
		return Verdict{Action: Drop}, 0
	case err != nil:
		m.counters.Truncated++
		return Verdict{Action: Drop}, 0
	}
	head := wire.EnvelopeLen
	if binary.BigEndian.Uint16(frame[etherType:]) == etherTypeVLAN {
		head += vlanLen
	}
	v, answer := m.answerPayload(origin{ip: p.Src.IP, port: p.Src.Port, mac: &p.Src.MAC}, p.Payload, reply[head:])
	copy(reply, frame[:head])
	switch v.Action {
	case Reply:
		n = len(wire.Reply(reply, len(answer)))
	case Broadcast:
		n = len(wire.Broadcast(reply, len(answer), v.Job))
	}
	return v, n
}

// ProcessPayload is [Model.Process] for a payload that a UDP socket received from src. If the
// verdict is [Reply] or [Broadcast], the first n bytes of reply, which must have [MaxReplyPayload]
// bytes and must not overlap the payload, are the payload to send; otherwise n is 0. A sender is
// identified by its IP address and UDP port.
func (m *Model) ProcessPayload(src netip.AddrPort, payload, reply []byte) (v Verdict, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, answer := m.answerPayload(origin{ip: src.Addr().Unmap(), port: src.Port()}, payload, reply)
	return v, len(answer)
}

// IsSender reports whether a payload with this header is of a sender that is admitted in the
// header's epoch, from src.
func (m *Model) IsSender(src netip.AddrPort, h wire.Header) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, s, err := m.findSender(h.Job, h.Sender)
	return err == nil && s.Epoch == h.Epoch && origin{ip: src.Addr().Unmap(), port: src.Port()}.isSender(s.SenderConfig)
}

// forwardFrame returns the output port of a Libra frame between hosts. It handles only the simple
// case of a learning bridge: an untagged frame of a host behind the port on which it arrived, to a
// host behind another port. The bridge must see all others, to learn where their sender is now, or
// to treat them by rules that only it knows.
func (m *Model) forwardFrame(from int, frame []byte) (to int, ok bool) {
	if binary.BigEndian.Uint16(frame[etherType:]) == etherTypeVLAN {
		return 0, false
	}
	if home, known := m.routes[[6]byte(frame[6:])]; !known || home != from {
		return 0, false
	}
	to, ok = m.routes[[6]byte(frame)]
	return to, ok && to != from
}

// isDestination reports whether a frame that is not foreign is addressed to the aggregator. The
// frame may be damaged after the addresses.
func (m *Model) isDestination(frame []byte) bool {
	at := etherType
	if binary.BigEndian.Uint16(frame[at:]) == etherTypeVLAN {
		at += vlanLen
	}
	if binary.BigEndian.Uint16(frame[at:]) != etherTypeIPv4 {
		return false
	}
	return netip.AddrFrom4([4]byte(frame[at+2+ipv4Dst:])) == m.address
}
