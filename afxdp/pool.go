// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

// Pool holds free frames of a UMEM for one goroutine, last in first out so that a warm chunk is
// reused first. A Pool is not safe for concurrent use; give each goroutine its own.
//
// A frame may be returned to another pool of the same UMEM.
type Pool struct {
	umem *UMEM
	free []Frame // capacity for all frames of the UMEM, so push never grows it
}

// UMEM returns the memory of the pool's frames.
func (p *Pool) UMEM() *UMEM { return p.umem }

// Available returns the number of free frames.
func (p *Pool) Available() int { return len(p.free) }

// Alloc returns a free frame: it becomes yours. Its bytes are undefined.
func (p *Pool) Alloc() (Frame, bool) {
	n := len(p.free)
	if n == 0 {
		return 0, false
	}
	f := p.free[n-1]
	p.free = p.free[:n-1]
	p.umem.state[f] = stateYours
	return f, true
}

// AllocBatch allocates up to len(dst) free frames and returns how many.
func (p *Pool) AllocBatch(dst []Frame) int {
	n := min(len(dst), len(p.free))
	rest := len(p.free) - n
	copy(dst, p.free[rest:])
	p.free = p.free[:rest]
	for _, f := range dst[:n] {
		p.umem.state[f] = stateYours
	}
	return n
}

// Free returns frames to the pool. It stops at the first one that is not yours and returns a
// [FrameError]; the frames before that one are free.
func (p *Pool) Free(frames ...Frame) error {
	state := p.umem.state
	for _, f := range frames {
		if int(f) >= len(state) || state[f] != stateYours {
			return frameError("free", f, state)
		}
		p.pushFrame(f)
	}
	return nil
}

// pushFrame frees a frame whose state the caller has checked.
func (p *Pool) pushFrame(f Frame) {
	p.umem.state[f] = stateFree
	p.free = append(p.free, f)
}
