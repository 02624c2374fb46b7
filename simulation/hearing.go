// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// hearing records what a worker's process has received, to decide whether a peer that it gives up
// was silent: a peer is not if its answer waits in the queue, or if the worker has not listened.
//
// It is the [world.Watcher] of the link.
type hearing struct {
	host *world.Host
	// repeats, if set, is called for each frame that a timeout repeats.
	repeats func(w *world.Host, peer *heard)
	peers   map[wire.Endpoint]*heard

	ended   time.Time     // the process has closed its link; zero: not yet
	slept   time.Duration // in pauses until then
	pauses  int           // until then
	partial bool          // the last Receive has left some payloads
}

func newHearing(h *world.Host, repeats func(w *world.Host, peer *heard)) *hearing {
	return &hearing{host: h, repeats: repeats, peers: map[wire.Endpoint]*heard{}}
}

// heard is the record of one peer.
type heard struct {
	epoch    uint16        // of the frames sent to it
	answered []bool        // by number, from wire.FirstSeq
	at       time.Time     // of the last first answer to a frame
	slept    time.Duration // in pauses until at
	pauses   int           // until at
	waiting  []uint32      // numbers of frames whose answers are in the queue at the end
	since    time.Time     // of the last answer, or of the first frame sent to it
	repeated int           // frames that timeouts have repeated since then
}

// Sends records that a frame is sent to a peer.
func (h *hearing) Sends(to wire.Endpoint, payload []byte) {
	head, err := wire.ParseHeader(payload)
	if err != nil {
		return
	}
	of := h.peers[to]
	if of == nil {
		of = &heard{epoch: head.Epoch, since: time.Now()}
		h.peers[to] = of
	}
	// A frame with a lower number than an answered one is assumed lost when others have overtaken
	// it.
	if head.Flags&wire.FlagRetx != 0 && head.Seq-wire.FirstSeq >= uint32(len(of.answered)) && h.repeats != nil {
		h.repeats(h.host, of)
	}
}

// firstAnswers calls f for each frame that a payload answers for the first time.
func (h *hearing) firstAnswers(p *link.Packet, f func(of *heard, seq uint32)) {
	of := h.peers[wire.Endpoint{IP: p.Src.IP, Port: p.Src.Port}]
	head, err := wire.ParseHeader(p.Payload)
	if err != nil || of == nil || head.Epoch != of.epoch ||
		head.Type != wire.TypeAck && head.Type != wire.TypeError && head.Type != wire.TypeRows {
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

// Gets records the payloads that the process gets.
func (h *hearing) Gets(pkts []link.Packet, more bool) {
	for i := range pkts {
		h.firstAnswers(&pkts[i], func(of *heard, seq uint32) {
			n := int(seq - wire.FirstSeq)
			if more := n + 1 - len(of.answered); more > 0 {
				of.answered = append(of.answered, make([]bool, more)...)
			}
			of.answered[n] = true
			of.at, of.slept, of.pauses = time.Now(), h.host.Slept(), h.host.Pauses()
			of.since, of.repeated = of.at, 0
		})
	}
	h.partial = more
}

// Answers does nothing: a worker answers nobody.
func (h *hearing) Answers([]link.Packet) {}

// Closes records the queue of a process that closes its link.
func (h *hearing) Closes(waiting []link.Packet) {
	if !h.ended.IsZero() {
		return
	}
	h.ended, h.slept, h.pauses = time.Now(), h.host.Slept(), h.host.Pauses()
	if h.partial {
		return // it could not know
	}
	for i := range waiting {
		h.firstAnswers(&waiting[i], func(of *heard, seq uint32) { of.waiting = append(of.waiting, seq) })
	}
}

// endedAt returns when the worker's process closed its link, or now if it is open: a call may begin
// and end long after that.
func (h *hearing) endedAt() time.Time {
	if h.ended.IsZero() {
		return time.Now()
	}
	return h.ended
}

// givenUpWrongly returns why a peer that an error gives up for its silence was not silent, nil if
// it was.
func (h *hearing) givenUpWrongly(err error) error {
	var of *transport.PeerError
	var silent *retransmit.SilentPeerError
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
