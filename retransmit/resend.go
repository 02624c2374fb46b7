// SPDX-License-Identifier: Apache-2.0

package retransmit

import "time"

const (
	// minAllowance is the least time for which a frame may be overtaken before it
	// counts as lost. Queues and cores in the path reorder frames by some tens of
	// microseconds; waiting that long costs little.
	minAllowance = 100 * time.Microsecond

	// maxReordering bounds the factor by which spurious retransmissions stretch the
	// allowance, and reorderingLife is the number of repairs for which the factor
	// lasts (RFC 8985, section 6.2, step 4).
	maxReordering  = 16
	reorderingLife = 16

	// lossMemory is the number of transmissions for which a path counts as lossy.
	lossMemory = 4096
)

// detection detects lost frames by the answers to others, as RACK does for TCP (RFC
// 8985): a frame is lost if a frame sent after it is answered, and that frame's round
// trip and an allowance for reordering have passed since it was sent. Each frame has
// its own answer here, so no more evidence is needed.
type detection struct {
	order   uint64        // of the newest transmission
	newest  uint64        // of the newest answered transmission
	rtt     time.Duration // its round trip
	changed bool          // whether newest changed since the last check of the list
	at      Time          // when the first of the overtaken frames is due; never, if there is none

	reordering int    // factor of the allowance
	life       int    // repairs until it becomes 1 again
	until      uint64 // it grows once for all transmissions up to this one

	losing uint64 // the path counts as lossy up to this transmission
}

const never = Time(1<<63 - 1)

func (d *detection) initDetection() { d.at, d.reordering = never, 1 }

// updateNewest records the answer to a frame that was sent once.
func (d *detection) updateNewest(order uint64, rtt time.Duration) {
	if order > d.newest {
		d.newest, d.rtt, d.changed = order, rtt, true
	}
}

// markLossy records that frames were retransmitted as lost. [Window.checkSpurious]
// reverts it if all copies of a frame are answered: then the peer was slow.
func (d *detection) markLossy() { d.losing = d.order + lossMemory }

// probing finds out after a timeout whether frames were lost or the peer was slow. It
// retransmits the oldest frame and waits. A slow peer answers the others too. If only
// retransmissions are answered, the number of retransmitted frames doubles with each
// timeout, as in TCP's slow start (RFC 5682 explains why not all frames are
// retransmitted).
type probing struct {
	from  Time // when the timer was started
	burst int  // frames to retransmit at the next timeout; 0 means one
	alive bool // something was answered since the last timeout

	once  uint32 // the last frame that a timeout retransmitted for the first time
	asked bool   // a second answer to it would show that nothing was lost
}

// restartTimer starts the timer after a transmission or an answer.
func (p *probing) restartTimer(now Time) { p.from = now }

// noteAnswer records the answer to an outstanding frame (RFC 6298, section 5.3).
func (p *probing) noteAnswer(now Time) {
	p.from, p.alive = now, true
}

// endBurst records the answer to a frame that was sent once: not all was lost.
func (p *probing) endBurst() { p.burst = 0 }

// probeTimeout returns the time without answers after which the oldest frame is
// retransmitted, and whether it is shorter than the retransmission timeout. A lossy path
// also loses last and single frames, which no later answer reveals; two round trips are
// then enough (RFC 8985, section 7). On other paths, the cause is a waiting peer.
func (w *Window) probeTimeout() (d time.Duration, early bool) {
	d = w.rtt.rto
	if w.tail.alive && w.loss.order < w.loss.losing {
		d = min(d, 2*w.rtt.srtt+minAllowance)
	}
	return d, d < w.rtt.rto
}

// Resend calls resend for every frame that is due for retransmission, with its
// sequence number and its entry of [Window.Add]. If resend returns false, for
// instance because a transmit ring is full, that frame and the rest stay due.
// resend must not call methods of w.
//
// A frame is retransmitted
//   - when a frame that was sent after it has been answered and an allowance for
//     reordering has passed; the allowance doubles with each retransmission of
//     the frame;
//   - when no frame of the window was answered for a timeout: then only the oldest
//     one, because most often the peer had to wait. See RFC 6298 for the timeout
//     and its doubling. On a path that has lately lost frames the first such
//     retransmission comes after two round trips (RFC 8985, section 7).
//
// Process all received answers before calling it.
func (w *Window) Resend(now Time, resend func(seq uint32, e Entry) bool) {
	if w.idle() {
		return
	}
	if (w.loss.changed || now >= w.loss.at) && w.resendLost(now, resend) {
		return
	}
	if d, early := w.probeTimeout(); now >= w.tail.from.Add(d) {
		w.sendProbes(now, early, resend)
	}
}

// resendLost retransmits lost frames, and reports whether there were any. If so, no
// probe is needed: their answers are still to come.
func (w *Window) resendLost(now Time, resend func(uint32, Entry) bool) bool {
	d := &w.loss
	d.changed, d.at = false, never
	any := false
	for i := w.first(); i != w.head(); {
		f := &w.frames[i]
		if f.order >= d.newest {
			break // neither it nor any later one is overtaken
		}
		later := f.later
		due := f.Last.Add(d.rtt + w.allowance(f))
		switch {
		case due <= now:
			if !resend(w.seqAt(i), f.Entry) {
				d.at = now
				return true
			}
			w.retransmitted(now, i)
			w.tail.restartTimer(now)
			w.limit.lost++
			any = true
		case f.Copies > 1: // may be due later than those after it
			d.at = min(d.at, due)
		default:
			d.at = min(d.at, due)
			later = w.head()
		}
		i = later
	}
	if any {
		d.markLossy()
		if d.life--; d.life == 0 {
			d.reordering = 1
		}
	}
	return any
}

// allowance returns how long a frame may be overtaken before it counts as lost.
func (w *Window) allowance(f *frame) time.Duration {
	a := time.Duration(w.loss.reordering) * max(minAllowance, w.rtt.srtt/4)
	return min(min(a, w.rtt.rto)<<(f.Copies-1), w.rtt.rto)
}

// retransmitted records a retransmission.
func (w *Window) retransmitted(now Time, i int32) {
	w.unlink(&w.frames[i])
	w.transmitted(now, i)
	w.stats.Retransmitted++
}

// sendProbes retransmits the oldest frames after a timeout.
func (w *Window) sendProbes(now Time, early bool, resend func(uint32, Entry) bool) {
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
		w.retransmitted(now, i)
		w.stats.Probes++
		if f.Copies == 2 {
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
	w.loss.markLossy()
}

// checkSpurious checks whether a retransmission was spurious: all copies of the frame
// are answered. Then the path reorders frames by more than the allowance.
func (w *Window) checkSpurious(seq uint32) {
	if p := &w.tail; p.asked && seq == p.once { // also when another frame has its place
		w.loss.losing, p.asked = 0, false
	}
	f := &w.frames[w.index(seq)]
	if w.next-seq > w.mask+1 || f.Copies != 2 {
		return // another frame has its place, or it is ambiguous which copy is late
	}
	w.loss.losing = 0
	if f.probe {
		return // the retransmission was not based on the order of answers
	}
	f.Copies = maxCopies // a further answer is to a copy made by the network
	w.stats.Spurious++
	d := &w.loss
	d.life = reorderingLife
	if f.order > d.until {
		d.reordering = min(2*d.reordering, maxReordering)
		d.until = d.order
	}
}

// NextDeadline returns the time at which to call [Window.Resend] and [Window.Check]
// again, and false if nothing is outstanding. There may be nothing to retransmit at
// that time.
func (w *Window) NextDeadline() (Time, bool) {
	if w.outstanding == 0 {
		return 0, false
	}
	t := w.heard.nextListening(w.silent, w.rtt.rto)
	if w.idle() {
		return t, true
	}
	if w.loss.changed && w.frames[w.first()].order < w.loss.newest {
		return w.heard.at, true
	}
	d, _ := w.probeTimeout()
	return min(t, w.loss.at, w.tail.from.Add(d)), true
}
