// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"math"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// coverEach is how many frames one ACK is asked for.
const coverEach = 16

// isReady reports whether a frame with values can be made: the successor is in the operation, and
// this worker has the values that are next. Floats are passed on as they arrive, in full frames, so
// that a line does not wait for the end of a block before it goes on with the next one; codes a
// block at a time, as frames of them hold what they hold.
func (r *Ring) isReady() bool {
	if r.values == nil || r.next.op != r.op {
		return false
	}
	for ; r.step <= r.steps; r.step, r.at = r.step+1, 0 {
		begin, end := r.sent(r.step)
		if here := r.here(); here < end-begin {
			full := (r.link.Limits().MaxPayload - wire.BlockHead) / 4
			return r.cfg.Codec.Bound == 0 && here-r.at >= full
		}
		if r.at < end-begin {
			return true
		}
	}
	return false
}

// here is how many values this worker has of the block that it sends, from the first on.
func (r *Ring) here() int {
	if r.step == 1 {
		begin, end := r.sent(1)
		return end - begin
	}
	return r.whole[r.step-1]
}

// send makes frames and sends them.
func (r *Ring) send(now retransmit.Time) error {
	r.noRoom = false
	for {
		if r.queued == 0 {
			r.build(now)
		}
		if r.queued == 0 {
			return nil
		}
		n, err := r.link.Send(r.out[:r.queued])
		if err != nil {
			return err
		}
		r.window.Sent(now, n)
		r.queued = copy(r.out[:], r.out[n:r.queued])
		r.noteTaken(n)
		if r.queued > 0 {
			r.noRoom = true
			return nil
		}
	}
}

// build makes frames, as many as the window has room for.
func (r *Ring) build(now retransmit.Time) {
	var last []byte
	for r.queued < batch && r.isReady() && !r.window.Full() {
		buf, ok := r.link.Alloc()
		if !ok {
			r.noRoom = true // the device reads earlier ones
			break
		}
		h := r.header()
		h.Seq, h.Flags = r.window.NextSeq(), wire.FlagQuiet
		if h.Seq%coverEach == 0 {
			h.Flags = wire.FlagCover
		}
		last = r.link.Payload(buf)
		h.Put(last)
		n := r.fill(last)
		r.window.Add(now, retransmit.Entry{Cookie: uint64(buf), Len: uint32(n)})
		r.out[r.queued] = link.Frame{Buf: buf, Len: n, To: r.next.path}
		r.queued++
		r.stats.Sent++
		r.stats.SentBytes += uint64(n)
	}
	if last != nil {
		wire.Ask(last)
	}
}

func (r *Ring) header() wire.Header {
	return wire.Header{Type: wire.TypeBlock, Job: r.cfg.Job, Sender: uint16(r.cfg.Place), Epoch: r.cfg.Epoch}
}

// fill writes the next values of the step into a payload, and returns its length.
func (r *Ring) fill(payload []byte) int {
	begin, _ := r.sent(r.step)
	from, end := begin+r.at, begin+r.here()
	head := wire.Block{
		Operation: r.op, First: uint32(from), Step: uint16(r.step),
		Bound: uint8(r.cfg.Codec.Bound), Scale: int8(r.cfg.Codec.Scale),
	}
	var count, n int
	if r.cfg.Codec.Bound == 0 {
		count = min(end-from, (len(payload)-wire.BlockHead)/4, math.MaxUint16)
		wire.PutFloats(payload[wire.BlockHead:], r.values[from:][:count])
		n = wire.BlockHead + 4*count
	} else {
		count, n = r.fillCodes(payload, r.values[from:end])
		if r.step <= len(r.cfg.Workers) {
			r.keepRest(from, count, payload[wire.BlockHead:n])
		}
	}
	head.Count = uint16(count)
	head.Put(payload)
	r.at += count
	return n
}

// fillCodes codes values, as many as a payload holds. It returns their number, and the length of
// the payload.
func (r *Ring) fillCodes(payload []byte, values []float32) (count, n int) {
	n = wire.BlockHead
	for count < min(len(values), wire.MaxCoded) {
		group := values[count:min(count+codec.Group, len(values))]
		if len(payload)-n >= codec.MaxLen(len(group)) {
			n = len(r.codec.Append(payload[:n], group))
		} else {
			r.codes = r.codec.Append(r.codes[:0], group)
			if len(r.codes) > len(payload)-n {
				break
			}
			n += copy(payload[n:], r.codes)
		}
		count += len(group)
	}
	return count, n
}

// keepRest keeps what codes have cut off, for the next operation. The owner of a block, which is
// finished, takes for its values what others decode.
func (r *Ring) keepRest(from, count int, codes []byte) {
	decoded := r.scratch[:count]
	if err := r.codec.Decode(decoded, codes); err != nil {
		panic("ring: its own codes are malformed: " + err.Error())
	}
	values, rest := r.values[from:][:count], r.rest[from:][:count]
	for i, d := range decoded {
		rest[i] = values[i] - d
		if math.Float32bits(values[i])&infinite == infinite { // a sum has left the range of float32
			rest[i] = 0
		}
	}
	if r.step == len(r.cfg.Workers) {
		copy(values, decoded)
	}
}

// resend sends a frame again.
func (r *Ring) resend(_ uint32, e retransmit.Entry) bool {
	r.again[0] = link.Frame{Buf: link.Buf(e.Cookie), Retx: true, Len: int(e.Len), To: r.next.path}
	n, err := r.link.Send(r.again[:])
	if err != nil {
		r.sendErr = err
	}
	r.noteTaken(n)
	return n == 1
}

// noteTaken notes whether the link has just taken frames, or has had no room for the first one.
func (r *Ring) noteTaken(n int) {
	if r.blocked = n == 0; !r.blocked {
		r.stuck = 0
	}
}

// announceDue says that this worker is in the operation: to its predecessor when it begins, and to
// both neighbours as long as nothing arrives.
func (r *Ring) announceDue(now retransmit.Time) error {
	first := r.announceWait == 0
	r.announceWait = min(max(firstAnnounced, 2*r.announceWait), longestAnnounced, max(firstAnnounced, r.cfg.Limit/8))
	if r.moved {
		r.announceWait = firstAnnounced
	}
	quiet := !r.moved
	r.moved = false
	r.announceAt = now.Add(r.announceWait)
	if !quiet {
		return nil
	}
	if err := r.announce(&r.prev); err != nil || first || r.next.Worker == r.prev.Worker {
		return err
	}
	return r.announce(&r.next)
}

// announce sends a BLOCK without values. It is lost if the link has no room.
func (r *Ring) announce(n *neighbour) error {
	buf, ok := r.link.Alloc()
	if !ok {
		return nil
	}
	defer r.link.Free(buf)
	payload := r.link.Payload(buf)
	r.putPresence(payload)
	r.again[0] = link.Frame{Buf: buf, Len: wire.BlockHead, To: n.path}
	taken, err := r.link.Send(r.again[:])
	r.noteTaken(taken)
	r.stats.Presences++
	return err
}

// acknowledge sends the predecessor an ACK of a frame and of those around it. It is lost if the
// link has no room.
func (r *Ring) acknowledge(seq uint32) error {
	buf, ok := r.link.Alloc()
	if !ok {
		return nil
	}
	defer r.link.Free(buf)
	h := r.header()
	h.Sender, h.Seq = uint16(r.prev.Place), seq
	n := len(wire.PutCover(r.link.Payload(buf), h, r.seen.Cover(seq)))
	r.again[0] = link.Frame{Buf: buf, Len: n, To: r.prev.path}
	_, err := r.link.Send(r.again[:])
	return err
}

// putPresence writes a BLOCK without values.
func (r *Ring) putPresence(payload []byte) {
	r.header().Put(payload)
	wire.Block{
		Operation: r.op, First: uint32(r.cfg.Values), Step: uint16(len(r.cfg.Workers)),
		Bound: uint8(r.cfg.Codec.Bound), Scale: int8(r.cfg.Codec.Scale),
	}.Put(payload)
}
