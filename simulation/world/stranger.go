// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"

	"github.com/libra-ina/libra/wire"
)

// StrangePort is the port of a program on a host of the job that does not belong to the job.
const StrangePort = 6666

// Forge makes a stranger on one host send a payload to another, which arrives at once.
func (n *Network) Forge(from, to *Host, payload []byte) {
	n.count.Forged++
	n.arriveFrom(wire.Endpoint{IP: from.at.IP, Port: StrangePort}, from, to, payload)
}

// forge lets strangers see a sent frame, and so its sender's numbers, and send a different one to
// its receiver before it arrives, and an answer to its sender.
func (n *Network) forge(from, to *Host, payload []byte, ahead uint32) {
	h, err := wire.ParseHeader(payload)
	if err != nil || !IsRequest(h.Type) && h.Type != wire.TypeBlock {
		return
	}
	n.count.Forged += 2
	answer := make([]byte, wire.HeaderLen)
	ack := h
	ack.Type, ack.Flags = wire.TypeAck, 0
	ack.Put(answer)
	n.w.quietly(1, func() {
		n.arriveFrom(wire.Endpoint{IP: to.at.IP, Port: StrangePort}, to, from, answer)
	})
	frame := bytes.Clone(payload)
	h.Seq += ahead
	h.Put(frame)
	src := wire.Endpoint{IP: from.at.IP, Port: StrangePort}
	if other := n.w.options.Conditions.Stranger; other.IsValid() && h.Seq%2 == 0 {
		src.IP = other
	}
	n.w.quietly(2, func() { n.arriveFrom(src, from, to, frame) })
}

// IsRequest reports whether frames of a type are workers' frames, not answers.
func IsRequest(t wire.Type) bool {
	return t == wire.TypeHot || t == wire.TypeCold || t == wire.TypeColdAt || IsQuery(t)
}

// IsQuery reports whether frames of a type request data and change nothing.
func IsQuery(t wire.Type) bool { return t == wire.TypePull || t == wire.TypeFind }
