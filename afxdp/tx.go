// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

// Send puts packets in the TX ring: frames that are yours become in flight. It returns how many
// descriptors were accepted; fewer than len(descs), without an error, means that the TX or
// completion ring is full: call Kick and Completed, then send the rest. With an error, descs[n] is
// the one that was refused and descs[:n] were accepted. Packets of several fragments are accepted
// completely or not at all.
//
// The kernel starts on them at the next Kick. The bytes must not change until Completed returned
// the frame.
func (s *Socket) Send(descs []Desc) (n int, err error) {
	if err := s.out.gate.enterGate(); err != nil {
		return 0, err
	}
	n, err = s.send(descs)
	s.out.gate.leaveGate()
	return n, err
}

func (s *Socket) send(descs []Desc) (int, error) {
	room, ok := s.tx.reserveEntries(min(uint32(len(descs)), s.maxInFlight-s.inFlight))
	if !ok {
		return 0, ErrRingCorrupt
	}
	n := s.sendPlain(descs[:room])
	var err error
	if n < int(room) {
		n, err = s.sendChecked(descs, n, int(room))
	}
	s.tx.submitEntries(uint32(n))
	s.inFlight += uint32(n)
	s.out.count.TxSubmitted += uint64(n)
	s.out.countCall()
	return n, err
}

// sendPlain writes TX entries for the leading descriptors that are valid packets of one frame
// without metadata, which in most programs are all.
func (s *Socket) sendPlain(descs []Desc) int {
	var (
		state  = s.state
		shift  = s.umem.shift & 63 // avoids a check for larger shifts
		size   = uint64(1) << shift
		first  = uint64(s.umem.txMeta)
		entry  = s.tx.descs
		mask   = uint32(len(entry)) - 1
		pos    = s.tx.prod
		flying = s.flying
	)
	for i := range descs {
		d := &descs[i]
		f, off, length := d.Frame, uint64(d.Off), uint64(d.Len)
		if int(f) >= len(state) || state[f] != stateYours ||
			d.Flags != 0 || length < minPacket || off+length > size || off < first {
			return i
		}
		state[f] = flying
		e := &entry[(pos+uint32(i))&mask]
		e.Addr, e.Len, e.Options = uint64(f)<<shift+off, d.Len, 0
	}
	return len(descs)
}

// sendChecked continues after sendPlain at descs[n] with descriptors of any kind, and returns how
// many descriptors are now in the ring as whole packets.
func (s *Socket) sendChecked(descs []Desc, n, room int) (int, error) {
	whole := n // descriptors that belong to complete packets
	mask := uint32(len(s.tx.descs)) - 1
	var err error
	for ; n < room; n++ {
		d := &descs[n]
		if int(d.Frame) >= len(s.state) || s.state[d.Frame] != stateYours {
			err = frameError("send", d.Frame, s.state)
			break
		}
		if err = s.checkDesc(descs, n, whole); err != nil {
			break
		}
		s.state[d.Frame] = s.flying
		s.tx.descs[(s.tx.prod+uint32(n))&mask] = xdpDesc{
			Addr: uint64(d.Frame)<<s.umem.shift + uint64(d.Off), Len: d.Len, Options: uint32(d.Flags),
		}
		if d.Flags&More == 0 {
			whole = n + 1
		}
	}
	if err == nil && n == len(descs) && whole < n {
		err = &DescError{Desc: descs[n-1], Reason: "the last descriptor of the batch has More set"}
	}
	// The beginning of a packet whose end is refused or does not fit.
	for _, d := range descs[whole:n] {
		s.state[d.Frame] = stateYours
	}
	return whole, err
}

// checkDesc refuses descriptors for which the kernel would drop the packet, or refuse it forever
// while it blocks the ring. first is the index of the first descriptor of the packet of descs[i].
func (s *Socket) checkDesc(descs []Desc, i, first int) error {
	d := descs[i]
	refuse := func(reason string) error { return &DescError{Desc: d, Reason: reason} }
	switch {
	case d.Flags&^(More|WithTxMeta) != 0:
		return refuse("unknown flags")
	case uint64(d.Off)+uint64(d.Len) > uint64(s.umem.cfg.FrameSize):
		return refuse("reaches beyond the frame")
	case d.Len == 0, i == first && d.Len < minPacket:
		return refuse("shorter than an Ethernet header")
	case int(d.Off) < s.umem.txMeta:
		return refuse("no room for the TX metadata before the packet")
	case d.Flags&More != 0 && !s.cfg.MultiBuffer:
		return refuse("several fragments without Config.MultiBuffer")
	case i-first >= MaxFragments:
		return refuse("more fragments than MaxFragments")
	case d.Flags&WithTxMeta != 0 && s.umem.txMeta == 0:
		return refuse("metadata without UMEMConfig.TxMetadata")
	case d.Flags&WithTxMeta != 0 && i != first:
		return refuse("metadata on a fragment that is not the first")
	case d.Flags&WithTxMeta != 0:
		m := s.umem.TxMeta(d)
		if reason := m.refusalOf(d.Len); reason != "" {
			return refuse(reason)
		}
		return s.info.Load().lacks(m.flags())
	}
	return nil
}

// Completed returns frames whose transmission ended: they are yours again, with their bytes
// unchanged. The end of a transmission does not mean that the packet was received. It returns how
// many were written to dst.
func (s *Socket) Completed(dst []Frame) (n int, err error) {
	if err := s.out.gate.enterGate(); err != nil {
		return 0, err
	}
	n, err = s.completed(dst)
	s.out.gate.leaveGate()
	return n, err
}

func (s *Socket) completed(dst []Frame) (int, error) {
	if len(s.reclaimed) > 0 {
		return s.completedByReopen(dst), nil
	}
	avail, ok := s.completion.availableEntries(uint32(len(dst)))
	if !ok {
		return 0, ErrRingCorrupt
	}
	if avail == 0 {
		if s.out.published.behind > 0 {
			s.out.publishCounters()
		}
		if s.mates != nil {
			return s.completedShared(dst)
		}
		return 0, nil
	}
	var (
		state  = s.state
		shift  = s.umem.shift & 63
		entry  = s.completion.addrs
		mask   = uint32(len(entry)) - 1
		pos    = s.completion.cons
		flying = s.flying
	)
	n := 0
	for i := range avail {
		f := entry[(pos+i)&mask] >> shift
		if f >= uint64(len(state)) || state[f] != flying {
			s.out.count.BadCompletions++
			continue
		}
		state[f] = stateYours
		dst[n] = Frame(f)
		n++
	}
	s.completion.releaseEntries(avail)
	s.countCompleted(n)
	return n, nil
}

// countCompleted counts frames that Completed returns.
func (s *Socket) countCompleted(n int) {
	s.inFlight -= uint32(n)
	s.out.count.TxCompleted += uint64(n)
	if s.inFlight > 0 {
		s.out.countCall()
	} else {
		s.out.publishCounters() // there may be no later call to send
	}
}

// completedByReopen returns frames that were in flight on a socket that Reopen replaced. No
// completion will arrive for them.
func (s *Socket) completedByReopen(dst []Frame) int {
	n := copy(dst, s.reclaimed)
	s.reclaimed = s.reclaimed[n:]
	for _, f := range dst[:n] {
		s.state[f] = stateYours
	}
	s.countCompleted(n)
	return n
}

// InFlight returns how many frames were sent and not yet returned by Completed.
func (s *Socket) InFlight() int { return int(s.inFlight) }
