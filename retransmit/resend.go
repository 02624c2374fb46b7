// SPDX-License-Identifier: Apache-2.0

package retransmit

import "time"

const (
	// minAllowance is the least time for which a frame may be overtaken before it
	// counts as lost. Queues and cores on the way reorder frames by some tens of
	// microseconds; to wait that long costs little.
	minAllowance = 100 * time.Microsecond

	// maxReordering bounds the factor by which repetitions that turn out to be
	// needless stretch the allowance, and reorderingLife is for how many
	// repairs the factor stays (RFC 8985, section 6.2, step 4).
	maxReordering  = 16
	reorderingLife = 16

	// lossMemory is for how many transmissions a path counts as one that loses frames.
	lossMemory = 4096
)

// detection finds lost frames by the answers to others, as RACK does for TCP (RFC
// 8985): a frame is lost if another one that was sent after it is answered, and
// the round trip of that one and an allowance for reordering have passed since
// it was sent. Each frame has an answer of its own here, so no more evidence than
// that is needed.
type detection struct {
	order   uint64        // of the newest transmission
	newest  uint64        // of the newest transmission that is answered
	rtt     time.Duration // its round trip
	changed bool          // newest, since the last look at the list
	at      Time          // when the first of the frames that were overtaken is due; never, if none is

	reordering int    // factor of the allowance
	life       int    // repairs until it becomes 1 again
	until      uint32 // it grows once for all frames before this one

	losing uint64 // the path loses frames, up to this transmission
}

const never = Time(1<<63 - 1)

func (d *detection) init() { d.at, d.reordering = never, 1 }

// answered notes the answer to a frame that was sent once.
func (d *detection) answered(order uint64, rtt time.Duration) {
	if order > d.newest {
		d.newest, d.rtt, d.changed = order, rtt, true
	}
}

// noticed notes that frames were repeated because they seemed lost. [Window.answeredAgain]
// takes it back if the copies of one are all answered: then it was the peer that was slow.
func (d *detection) noticed() { d.losing = d.order + lossMemory }

// probing finds out after a timeout whether frames were lost or the peer was slow. It
// sends the oldest frame once more and waits. A peer that was slow answers the
// others too. If instead only repetitions are answered, the number of frames that
// are repeated doubles with each timeout, as in TCP's slow start (RFC 5682 gives
// the reasons for not repeating all of them).
type probing struct {
	from  Time // when the timer was started
	burst int  // frames to repeat at the next timeout, 0 and 1 are one
	alive bool // something was answered since the last timeout

	once  uint32 // the last frame that a timeout had repeated, once
	asked bool   // and whose second answer would tell that nothing was lost
}

// restart starts the timer, because something was sent or answered.
func (p *probing) restart(now Time) { p.from = now }

// heard notes the answer to an outstanding frame (RFC 6298, section 5.3).
func (p *probing) heard(now Time) {
	p.from, p.alive = now, true
}

// settle notes that a frame that was sent once is answered: not all was lost.
func (p *probing) settle() { p.burst = 0 }

// timeout returns how long no frame of the window may be answered until the oldest is
// repeated, and whether that is earlier than the retransmission timeout. Where a path
// loses frames, it also loses the last ones and those that are alone on their way, which
// no later answer can tell of; then two round trips are enough (RFC 8985, section 7).
// Elsewhere it is the peer that has to wait.
func (w *Window) timeout() (d time.Duration, early bool) {
	d = w.rtt.rto
	if w.tail.alive && w.loss.order < w.loss.losing {
		d = min(d, 2*w.rtt.srtt+minAllowance)
	}
	return d, d < w.rtt.rto
}

// Resend calls resend for every frame that is to be sent again now, with the
// number and entry that it had at [Window.Add]. If resend returns false, for
// instance because a transmit ring is full, that frame and the rest stay due.
// resend must not call methods of w.
//
// A frame is sent again
//   - when a frame that was sent after it has been answered and an allowance for
//     reordering has passed; the allowance doubles with each repetition of the
//     same frame;
//   - when no frame of the window was answered for a timeout: then the oldest one
//     only, because most often it is the peer that had to wait. See RFC 6298 for
//     the timeout and its doubling. On a path that has lately lost frames the first
//     such repetition comes after two round trips (RFC 8985, section 7).
//
// Take in what has been received before calling it.
func (w *Window) Resend(now Time, resend func(seq uint32, e Entry) bool) {
	if w.idle() {
		return
	}
	if (w.loss.changed || now >= w.loss.at) && w.resendLost(now, resend) {
		return
	}
	if d, early := w.timeout(); now >= w.tail.from.Add(d) {
		w.probe(now, early, resend)
	}
}

// resendLost repeats the frames that are lost, and reports whether there were any.
// Then there is no need of a probe: the answers to these are yet to come.
func (w *Window) resendLost(now Time, resend func(uint32, Entry) bool) bool {
	d := &w.loss
	d.changed, d.at = false, never
	any := false
	for i := w.first(); i != w.head(); {
		f := &w.frames[i]
		if f.order >= d.newest {
			break // not overtaken, nor is any after it
		}
		later := f.later
		due := f.sent.Add(d.rtt + w.allowance(f))
		switch {
		case due <= now:
			if !resend(w.seqAt(i), f.Entry) {
				d.at = now
				return true
			}
			w.repeat(now, i)
			w.tail.restart(now)
			w.limit.lost++
			any = true
		case f.copies > 1: // waits longer than those after it, perhaps
			d.at = min(d.at, due)
		default:
			d.at = min(d.at, due)
			later = w.head()
		}
		i = later
	}
	if any {
		d.noticed()
		if d.life--; d.life == 0 {
			d.reordering = 1
		}
	}
	return any
}

// allowance returns how long a frame may be overtaken.
func (w *Window) allowance(f *frame) time.Duration {
	a := time.Duration(w.loss.reordering) * max(minAllowance, w.rtt.srtt/4)
	return min(min(a, w.rtt.rto)<<(f.copies-1), w.rtt.rto)
}

// repeat notes a repetition.
func (w *Window) repeat(now Time, i int32) {
	w.unlink(&w.frames[i])
	w.transmitted(now, i)
	w.stats.Retransmitted++
}

// probe repeats the oldest frames, because the timeout has passed.
func (w *Window) probe(now Time, early bool, resend func(uint32, Entry) bool) {
	p := &w.tail
	n := 1
	if p.alive {
		n = max(1, 2*p.burst)
	}
	done := 0
	for seq := w.base; seq != w.unsent && done < n; seq++ {
		i := int32(w.index(seq))
		f := &w.frames[i]
		if !f.outstanding {
			continue
		}
		if !resend(seq, f.Entry) {
			if done == 0 {
				return
			}
			break
		}
		f.probe = true
		w.repeat(now, i)
		w.stats.Probes++
		if f.copies == 2 {
			p.once, p.asked = seq, true
		} else if seq == p.once {
			p.asked = false
		}
		done++
	}
	if !early && (!p.alive || p.burst == 0) {
		w.rtt.backoff()
		w.stats.Backoffs++
	}
	p.burst, p.alive, p.from = n, false, now
	w.loss.noticed()
}

// answeredAgain looks whether a frame was repeated in vain: each of its copies is
// answered. Then the path reorders frames by more than the allowance.
func (w *Window) answeredAgain(seq uint32) {
	if p := &w.tail; p.asked && seq == p.once { // also when other frames have taken all places
		w.loss.losing, p.asked = 0, false
	}
	f := &w.frames[w.index(seq)]
	if w.next-seq > w.mask+1 || f.copies != 2 {
		return // another frame has its place, or which copy is late would be a guess
	}
	w.loss.losing = 0
	if f.probe {
		return // it was no guess from the order of answers
	}
	f.copies = maxCopies // one answer more is a copy that the network has made
	w.stats.Spurious++
	d := &w.loss
	d.life = reorderingLife
	if !newer(d.until, seq) {
		d.reordering = min(2*d.reordering, maxReordering)
		d.until = w.next
	}
}

// NextDeadline returns the time at which to call [Window.Resend] and
// [Window.Check] again, and false if nothing is outstanding. It may be earlier
// than there is something to resend.
func (w *Window) NextDeadline() (Time, bool) {
	if w.outstanding == 0 {
		return 0, false
	}
	t := w.heard.deadline(w.silent, w.rtt.rto)
	if w.idle() {
		return t, true
	}
	if w.loss.changed && w.frames[w.first()].order < w.loss.newest {
		return w.heard.at, true
	}
	d, _ := w.timeout()
	return min(t, w.loss.at, w.tail.from.Add(d)), true
}
