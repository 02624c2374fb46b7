// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// Kept is a link for several endpoints, one after the other: a process that has given up the
// privileges to open links opens them before, and uses them later.
type Kept struct {
	link Link
	lent atomic.Bool
}

// Keep returns a link that can be lent. It owns the link from then on.
func Keep(l Link) *Kept { return &Kept{link: l} }

// Link returns the link itself, for its address and limits.
func (k *Kept) Link() Link { return k.link }

// Lend returns the link for one endpoint, which ends its part with Close. While it is lent, Lend is
// an [ErrConfig].
func (k *Kept) Lend() (Link, error) {
	if k.lent.Swap(true) {
		return nil, fmt.Errorf("%w: the link at %v is in use", ErrConfig, k.link.Local().AddrPort())
	}
	return &lentLink{Link: k.link, kept: k}, nil
}

// Close closes the link. It must not be lent.
func (k *Kept) Close() error { return k.link.Close() }

// lentLink is a link whose end gives back what it has used, and leaves the link open.
type lentLink struct {
	Link
	kept   *Kept
	used   []bool // by buffer: it is allocated
	closed bool
	last   Stats // when it was closed
}

// Unwrap returns the kept link.
func (l *lentLink) Unwrap() Link { return l.Link }

func (l *lentLink) Alloc() (Buf, bool) {
	if l.closed {
		return 0, false
	}
	b, ok := l.Link.Alloc()
	if ok {
		if n := int(b) + 1 - len(l.used); n > 0 {
			l.used = append(l.used, make([]bool, n)...)
		}
		l.used[b] = true
	}
	return b, ok
}

func (l *lentLink) Free(b Buf) {
	if l.closed {
		return
	}
	l.used[b] = false
	l.Link.Free(b)
}

func (l *lentLink) Send(frames []Frame) (int, error) {
	if l.closed {
		return 0, net.ErrClosed
	}
	return l.Link.Send(frames)
}

func (l *lentLink) Receive(packets []Packet) (int, error) {
	if l.closed {
		return 0, net.ErrClosed
	}
	return l.Link.Receive(packets)
}

func (l *lentLink) Reply(packets []Packet) error {
	if l.closed {
		return net.ErrClosed
	}
	return l.Link.Reply(packets)
}

func (l *lentLink) Wait(limit time.Duration) error {
	if l.closed {
		return net.ErrClosed
	}
	return l.Link.Wait(limit)
}

func (l *lentLink) Stats() Stats {
	if l.closed {
		return l.last
	}
	return l.Link.Stats()
}

// Close gives back all buffers. Answers to frames that were sent may still arrive: the next
// endpoint's frames have other epochs.
func (l *lentLink) Close() error {
	if l.closed {
		return nil
	}
	l.last, l.closed = l.Link.Stats(), true
	for b, used := range l.used {
		if used {
			l.Link.Free(Buf(b))
		}
	}
	Watch(l.Link, -1)
	l.kept.lent.Store(false)
	return nil
}
