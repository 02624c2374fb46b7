// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

// Receive returns received packets: their frames become yours. It returns how many descriptors were
// written to dst, 0 if there are no packets. Without Config.MultiBuffer each is one packet. With
// it, descriptors with More set continue in the next one, only whole packets are returned, and dst
// must have at least MaxFragments elements.
//
// Return the frames with Release soon: packets that find no frame in the fill ring are dropped. A
// Receive that finds nothing wakes the driver if the driver needs it, and polls it with
// Config.BusyPoll; this call may return ErrLinkDown or ErrInterfaceGone.
func (s *Socket) Receive(dst []Desc) (n int, err error) {
	if err := s.in.gate.enterGate(); err != nil {
		return 0, err
	}
	n, err = s.receive(dst)
	s.in.gate.leaveGate()
	return n, err
}

func (s *Socket) receive(dst []Desc) (int, error) {
	avail, ok := s.rx.availableEntries(uint32(len(dst)))
	if !ok {
		return 0, ErrRingCorrupt
	}
	if avail == 0 {
		return 0, s.idleHalf(&s.in)
	}
	if s.mates != nil {
		s.mates.syncFillers()
	}
	n, used := s.receivePlain(dst[:avail]), avail
	var err error
	if n < int(avail) {
		n, used, err = s.receiveChecked(dst, n, avail)
	}
	s.rx.releaseEntries(used)
	s.unfilled += n
	s.in.count.RxReceived += uint64(n)
	s.in.countCall()
	return n, err
}

// receivePlain reads the leading RX entries that are packets of one frame, which in most programs
// are all.
func (s *Socket) receivePlain(dst []Desc) int {
	if s.rxSkip {
		return 0
	}
	var (
		state   = s.state
		shift   = s.umem.shift & 63 // avoids a check for larger shifts
		size    = uint64(1) << shift
		entry   = s.rx.descs
		mask    = uint32(len(entry)) - 1
		pos     = s.rx.cons
		filling = s.filling
	)
	for i := range dst {
		e := &entry[(pos+uint32(i))&mask]
		// Read once: a hostile writer may change the entry meanwhile.
		addr, length := e.Addr, e.Len
		f, off := addr>>shift, addr&(size-1)
		if f >= uint64(len(state)) || state[f] != filling ||
			off+uint64(length) > size || length == 0 || e.Options&uint32(More) != 0 {
			return i
		}
		state[f] = stateYours
		d := &dst[i]
		d.Frame, d.Len, d.Off, d.Flags = Frame(f), length, uint16(off), 0
	}
	return len(dst)
}

// receiveChecked continues after receivePlain at ring entry and dst[n] with entries of any kind. It
// returns how many descriptors, all of whole packets, are in dst, and how many entries are
// processed.
func (s *Socket) receiveChecked(dst []Desc, n int, avail uint32) (whole int, used uint32, err error) {
	var (
		mask    = uint32(len(s.rx.descs)) - 1
		inChunk = uint64(s.umem.cfg.FrameSize) - 1
	)
	whole, used = n, uint32(n)
	for i := used; i < avail; i++ {
		e := s.rx.descs[(s.rx.cons+i)&mask]
		f, off := e.Addr>>s.umem.shift, e.Addr&inChunk
		if f >= uint64(len(s.state)) || s.state[f] != s.filling || off+uint64(e.Len) > inChunk+1 || e.Len == 0 || s.rxSkip {
			n = s.skipBad(dst[:n], whole, e)
			used = i + 1
			continue
		}
		s.state[f] = stateYours
		dst[n] = Desc{Frame: Frame(f), Len: e.Len, Off: uint16(off), Flags: DescFlags(e.Options) & More}
		n++
		if e.Options&uint32(More) == 0 {
			whole, used = n, i+1
		}
	}
	if used == 0 && n == len(dst) {
		err = ErrShortBatch
	}
	// Fragments of a packet that does not fit dst stay in the ring.
	for _, d := range dst[whole:n] {
		s.state[d.Frame] = s.filling
	}
	return whole, used, err
}

// skipBad counts an entry with no frame of our fill ring, or with bytes outside its frame, and
// drops the whole packet: the earlier fragments and, by setting rxSkip, the later ones. It returns
// the new length of taken.
func (s *Socket) skipBad(taken []Desc, whole int, e xdpDesc) int {
	s.in.count.BadDescs++
	for _, d := range taken[whole:] {
		s.pool.pushFrame(d.Frame)
		s.unfilled++
	}
	if f := e.Addr >> s.umem.shift; f < uint64(len(s.state)) && s.state[f] == s.filling {
		s.pool.pushFrame(Frame(f)) // a frame of ours, which the kernel no longer uses
		s.unfilled++
	}
	s.rxSkip = e.Options&uint32(More) != 0
	return whole
}

// Release returns frames of received packets to the fill ring. Frames for which the fill ring has
// no room go to the pool. It stops at the first frame that is not yours and returns a [FrameError].
func (s *Socket) Release(descs []Desc) error {
	if err := s.in.gate.enterGate(); err != nil {
		return err
	}
	s.lockFill()
	err := s.releaseDescs(descs)
	s.unlockFill()
	s.in.gate.leaveGate()
	return err
}

func (s *Socket) releaseDescs(descs []Desc) error {
	room, ok := s.fill.reserveEntries(uint32(len(descs)))
	if !ok {
		return ErrRingCorrupt
	}
	var (
		state   = s.state
		shift   = s.umem.shift & 63
		entry   = s.fill.addrs
		mask    = uint32(len(entry)) - 1
		pos     = s.fill.prod
		filling = s.filling
		n       uint32
	)
	var err error
	for i := range descs {
		f := descs[i].Frame
		if int(f) >= len(state) || state[f] != stateYours {
			err = frameError("release", f, state)
			break
		}
		if n == room {
			s.pool.pushFrame(f)
			continue
		}
		state[f] = filling
		entry[(pos+n)&mask] = uint64(f) << shift
		n++
	}
	s.fill.submitEntries(n)
	s.unfilled -= int(n)
	return s.wakeFill(err)
}

// Fill puts frames that are yours in the fill ring, for example those that Completed returned in a
// program that forwards. It returns how many the fill ring had room for; the others stay yours.
func (s *Socket) Fill(frames []Frame) (n int, err error) {
	if err := s.in.gate.enterGate(); err != nil {
		return 0, err
	}
	s.lockFill()
	n, err = s.fillFrames(frames)
	s.unlockFill()
	s.in.gate.leaveGate()
	return n, err
}

func (s *Socket) fillFrames(frames []Frame) (int, error) {
	room, ok := s.fill.reserveEntries(uint32(len(frames)))
	if !ok {
		return 0, ErrRingCorrupt
	}
	mask := uint32(len(s.fill.addrs)) - 1
	var err error
	n := uint32(0)
	for n < room {
		f := frames[n]
		if int(f) >= len(s.state) || s.state[f] != stateYours {
			err = frameError("fill", f, s.state)
			break
		}
		s.state[f] = s.filling
		s.fill.addrs[(s.fill.prod+n)&mask] = uint64(f) << s.umem.shift
		n++
	}
	s.fill.submitEntries(n)
	s.unfilled -= int(n)
	return int(n), s.wakeFill(err)
}

// Refill moves up to n free frames from the pool to the fill ring and returns
// how many it moved.
func (s *Socket) Refill(n int) (int, error) {
	if err := s.in.gate.enterGate(); err != nil {
		return 0, err
	}
	s.lockFill()
	n, err := s.refill(n)
	s.unlockFill()
	s.in.gate.leaveGate()
	return n, err
}

// stockFillRing puts up to n frames in a new fill ring: first those that an earlier ring lent to
// the kernel, then free ones. It is harmless that a device may still write into the former: the
// kernel uses the new ring only when it has released the queue. Surplus frames become spare.
func (s *Socket) stockFillRing(n int) error {
	s.lockFill()
	defer s.unlockFill()
	own, _ := statesOf(s.id)
	old := s.lent(nil, own)
	again, ok := s.fill.reserveEntries(uint32(min(n, len(old))))
	if !ok {
		return ErrRingCorrupt
	}
	mask := uint32(len(s.fill.addrs)) - 1
	for i, f := range old[:again] {
		s.state[f] = s.filling
		s.fill.addrs[(s.fill.prod+uint32(i))&mask] = uint64(f) << s.umem.shift
	}
	s.fill.submitEntries(again)
	s.spare = old[again:]
	more, err := s.refill(n - int(again))
	s.unfilled = max(0, n-int(again)-more)
	return err
}

func (s *Socket) refill(n int) (int, error) {
	room, ok := s.fill.reserveEntries(uint32(max(0, min(n, s.pool.Available()))))
	if !ok {
		return 0, ErrRingCorrupt
	}
	mask := uint32(len(s.fill.addrs)) - 1
	for i := uint32(0); i < room; i++ {
		f, _ := s.pool.Alloc() // there is room for no more than the pool has
		s.state[f] = s.filling
		s.fill.addrs[(s.fill.prod+i)&mask] = uint64(f) << s.umem.shift
	}
	s.fill.submitEntries(room)
	s.unfilled -= int(room)
	return int(room), s.wakeFill(nil)
}

// wakeFill wakes a driver that stopped because the fill ring was empty. Only drivers in zero-copy
// mode need that. err takes precedence.
func (s *Socket) wakeFill(err error) error {
	if err != nil || !s.fill.needWakeup() {
		return err
	}
	return s.wakeDriver(&s.in)
}

// idleHalf is called by the goroutine in a half when there is nothing for it: to wake a driver that
// found the fill ring empty before frames were put there, and set its flag after that; or, with
// BusyPoll, to do the driver's work.
func (s *Socket) idleHalf(h *half) error {
	if h.published.behind > 0 {
		h.publishCounters()
	}
	if s.cfg.BusyPoll == nil && !s.fill.needWakeup() {
		return nil
	}
	return s.wakeDriver(h)
}

// wakeDriver makes the kernel process the fill ring, and poll the driver if the socket uses
// BusyPoll.
func (s *Socket) wakeDriver(h *half) error {
	h.count.RxWakeups++
	return s.linkState()
}
