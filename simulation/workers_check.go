// SPDX-License-Identifier: Apache-2.0

package simulation

import "errors"

// checkEnd checks the final state after all calls.
func (s *workersLife) checkEnd() {
	if s.Failure() != nil {
		return
	}
	l := s.ledger
	for _, bank := range l.banks {
		for rank, n := range bank {
			if n != 0 {
				s.Fail("after the last harvest, a bank holds %d units of rank %d", n, rank)
			}
		}
	}
	s.ledger.compareSums()
	s.checkRepeats()
	for _, h := range s.peerHosts() {
		if n := h.Link().Held(); n != 0 {
			s.Fail("%s holds %d buffers at its end", h.Name(), n)
		}
	}
	for _, f := range l.frames.order {
		if f.push != nil {
			f.push.session.measureFrames(f.push) // a push that was given up must not be sent later
		}
		if f.push != nil && f.push.accepted && !f.push.failed && !f.applied && !f.wasRenamed() && !f.push.session.crashed {
			s.Fail("frame %d of sender %d was accepted, and is neither applied nor reported", f.id.seq, f.id.sender)
		}
	}
	for _, v := range s.servers {
		if err := errors.Join(s.plane.Err(), v.ps.Err()); err != nil {
			s.Fail("a server has ended: %v", err)
		}
	}
}
