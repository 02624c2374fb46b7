// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// hearing records what a worker's process has received, to decide whether a peer that it gives up
// was silent: a peer is not if its answer waits in the queue, or if the worker has not listened.
type hearing struct {
	peers   map[wire.Endpoint]*heard
	ended   time.Time
	slept   time.Duration // until then
	pauses  int           // until then
	partial bool          // the last Receive has left some payloads
}

// heard is the record of one peer.
type heard struct {
	epoch    uint16        // of the questions
	answered []bool        // by number, from wire.FirstSeq
	at       time.Time     // time of the last first answer to a frame
	slept    time.Duration // until then
	pauses   int           // until then
	waiting  []uint32      // numbers of frames whose answers are in the queue at the end
	since    time.Time     // of the last answer, or of the first question
	repeated int           // frames that timeouts have repeated since then
}

// asks records that a frame is sent to a peer.
func (l *simLink) asks(to wire.Endpoint, payload []byte) {
	h, err := wire.ParseHeader(payload)
	if l.hearing == nil || err != nil {
		return
	}
	of := l.hearing.peers[to]
	if of == nil {
		of = &heard{epoch: h.Epoch, since: time.Now()}
		l.hearing.peers[to] = of
	}
	// A frame with a lower number than an answered one is assumed lost when others have overtaken
	// it.
	if h.Flags&wire.FlagRetx != 0 && h.Seq-wire.FirstSeq >= uint32(len(of.answered)) {
		l.s.patient(l.host, of)
	}
}

// answers calls f for each frame that a payload answers for the first time.
func (h *hearing) answers(p *link.Packet, f func(of *heard, seq uint32)) {
	of := h.peers[wire.Endpoint{IP: p.Src.IP, Port: p.Src.Port}]
	head, err := wire.ParseHeader(p.Payload)
	if err != nil || of == nil || head.Epoch != of.epoch || head.Type != wire.TypeAck && head.Type != wire.TypeError && head.Type != wire.TypeRows {
		return
	}
	news := func(seq uint32) {
		if n := seq - wire.FirstSeq; n < maxFrames && (n >= uint32(len(of.answered)) || !of.answered[n]) {
			f(of, seq)
		}
	}
	news(head.Seq)
	if head.Type != wire.TypeAck {
		return
	}
	if _, err := wire.ParseAck(p.Payload, head); err != nil {
		return
	}
	for cover := wire.Cover(p.Payload, head); cover != 0; cover &= cover - 1 {
		news(head.Seq + wire.CoverAhead - uint32(bits.TrailingZeros64(cover)))
	}
}

// hears records n payloads that a process gets.
func (l *simLink) hears(given, asked int) {
	if l.hearing == nil {
		return
	}
	for i := range l.inbox[:given] {
		l.hearing.answers(&l.inbox[i], func(of *heard, seq uint32) {
			n := int(seq - wire.FirstSeq)
			if more := n + 1 - len(of.answered); more > 0 {
				of.answered = append(of.answered, make([]bool, more)...)
			}
			of.answered[n] = true
			of.at, of.slept, of.pauses = time.Now(), l.host.rested(), l.host.pauses
			of.since, of.repeated = of.at, 0
		})
	}
	l.hearing.partial = given < min(asked, len(l.inbox))
}

// listens records the queue of a process that closes its link.
func (l *simLink) listens() {
	h := l.hearing
	if h == nil || !h.ended.IsZero() {
		return
	}
	h.ended, h.slept, h.pauses = time.Now(), l.host.rested(), l.host.pauses
	if h.partial {
		return // it could not know
	}
	for i := range l.inbox {
		h.answers(&l.inbox[i], func(of *heard, seq uint32) { of.waiting = append(of.waiting, seq) })
	}
}

// until returns when the worker's process closed its link, or now if it is open: a call may begin
// and end long after that.
func (l *simLink) until() time.Time {
	if l.hearing.ended.IsZero() {
		return time.Now()
	}
	return l.hearing.ended
}

// silent returns why a peer that was given up for its silence was not silent, or "".
func (l *simLink) silent(err error) error {
	var of *transport.PeerError
	var silent *retransmit.SilentPeerError
	h := l.hearing
	if h == nil || h.ended.IsZero() || !errors.As(err, &of) || !errors.As(err, &silent) {
		return nil
	}
	peer := h.peers[wire.Endpoint{IP: of.Addr.Addr(), Port: of.Addr.Port()}]
	if peer == nil {
		return nil
	}
	for _, seq := range peer.waiting {
		if seq-silent.FirstSeq <= silent.LastSeq-silent.FirstSeq {
			return fmt.Errorf("it gives up a peer whose answer to frame %d is in its queue", seq)
		}
	}
	// Of its own pause, one timeout counts: a quarter of the limit.
	slept, pauses := h.slept-peer.slept, h.pauses-peer.pauses // see until
	if listened := h.ended.Sub(peer.at) - slept; pauses == 1 && !peer.at.IsZero() && listened < silent.Silent/2 {
		return fmt.Errorf("it gives up a peer after %v, of which it has listened for %v", silent.Silent, listened)
	}
	return nil
}

// pause suspends a host's process.
func (h *host) pause() {
	if !h.paused {
		h.paused, h.since = true, time.Now()
		h.pauses++
	}
}

// resume ends a pause.
func (h *host) resume() {
	if h.paused {
		h.paused, h.resumed = false, time.Now()
		h.slept += time.Since(h.since)
		h.timeouts += timeouts(time.Since(h.since))
	}
}

// rested returns how long a host has been suspended.
func (h *host) rested() time.Duration {
	if h.paused {
		return h.slept + time.Since(h.since)
	}
	return h.slept
}
