// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A sharedQueue is the common state of the sockets of one queue (Config.ShareQueue). The kernel has
// one fill and one completion ring for a queue. They belong to its pool of buffers, and so to the
// socket that was bound first; the others are bound to that pool and have only RX and TX rings
// (xsk_bind in net/xdp/xsk.c).
//
// The fill ring is common: a frame that one socket put there returns with a packet on any. A
// completion may be of any socket; the one that reads the ring lands all completions with their
// owners. Both rings stay mapped until the last socket leaves: kernels before 6.4 map them only
// through the first one's descriptor.
type sharedQueue struct {
	id      queueID
	number  uint16     // number in the UMEM, like those of sockets
	filling frameState // of frames in the fill ring, of any socket
	landed  frameState // of completed frames that their socket's Completed has not returned yet

	// Guarded by UMEM.sharing.
	users    int // sockets that are bound, or being bound
	unbound  bool
	surplus  int // frames that former sockets had put into the fill ring
	mappings [][]byte

	inTurn  bool       // see sendsInTurn
	sending sync.Mutex // held while the kernel is called to send, if inTurn

	mu         sync.Mutex // guards the fields below, and the sockets' landed
	fill       addrRing
	completion addrRing
	members    []*Socket // whose frames may be in flight here
	bad        uint64    // completions of frames that were not in flight
	gone       bool      // the last socket has left
}

// joinQueue adds the socket to its queue. first means that it must bring the rings. The caller
// holds UMEM.sharing until it is bound.
func (s *Socket) joinQueue(id queueID) (first bool, err error) {
	u := s.umem
	q := u.queues[id]
	if first = q == nil; first {
		q = &sharedQueue{id: id, inTurn: sendsInTurn(kernelRelease())}
		if q.number, err = u.takeNumber(nil); err != nil {
			return false, err
		}
		q.filling, q.landed = statesOf(q.number)
		if u.queues == nil {
			u.queues = make(map[queueID]*sharedQueue)
		}
		u.queues[id] = q
	}
	for _, m := range q.members {
		if m != s && m.mates == q && sameMap(m.cfg.XSKMap, s.cfg.XSKMap) {
			return false, fmt.Errorf("%w: another socket has queue %d in Config.XSKMap: pass a separate map, such as Attachment.OtherXSKMap, or none if it only sends", ErrConfig, id.queue)
		}
	}
	if s.former != nil && s.former != q {
		s.former.forgetSocket(s) // replace has waited for its frames
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.users++
	if !slices.Contains(q.members, s) {
		q.members = append(q.members, s)
		s.landed = make([]Frame, 0, s.maxInFlight)
	}
	s.continues = s.former == q
	s.mates, s.former, s.filling, s.share = q, nil, q.filling, 0
	return first, nil
}

// sameMap reports whether two maps are the same in the kernel.
func sameMap(a, b *ebpf.Map) bool {
	if a == nil || b == nil {
		return false
	}
	x, errX := a.Info()
	y, errY := b.Info()
	if errX != nil || errY != nil {
		return false // one is closed, which Open reports
	}
	idX, known := x.ID()
	idY, _ := y.ID()
	return known && idX == idY
}

// bringRings makes the rings of the first socket, which has mapped them, the queue's.
func (q *sharedQueue) bringRings(s *Socket, mappings [][]byte) {
	q.mappings = mappings
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fill, q.completion = s.fill, s.completion
	s.completion = addrRing{ring: emptyRing()} // Completed then asks the queue
}

// inheritFrames returns how many frames the socket must put into the fill ring in addition to those
// that others left in it.
func (s *Socket) inheritFrames() int {
	n := min(s.mates.surplus, s.cfg.RxFrames)
	s.mates.surplus -= n
	s.share = s.cfg.RxFrames
	return s.share - n
}

// hasMates reports whether another socket keeps the queue when s leaves it. s may share no queue.
func (s *Socket) hasMates() bool { return s.mates != nil && s.mates.users > 1 }

// settleFrames finishes work that the other sockets would otherwise have to finish for s, which
// leaves them: packets that the kernel has not taken are sent if possible, as frames that it may or
// may not have taken would stay lent; frames of packets that s has not received return to the fill
// ring.
func (s *Socket) settleFrames() {
	q := s.mates
	if s.calls.receiveCall() == unix.ENXIO {
		s.takeShare()
		return
	}
	for stop := time.Now().Add(settleTime); time.Now().Before(stop); {
		before, ok := s.tx.pendingEntries()
		if before == 0 || !ok {
			break
		}
		errno := s.calls.sendCall()
		if linkError(errno) != nil || errno == unix.EINVAL || errno == unix.EOPNOTSUPP {
			break
		}
		q.mu.Lock()
		q.sortCompletions() // the kernel needs room for completions
		q.mu.Unlock()
		if after, _ := s.tx.pendingEntries(); after == before {
			time.Sleep(time.Millisecond)
		}
	}
	// The XSKMAP no longer has the socket, but the kernel may be processing a packet for it. The
	// call waits until every processor has finished its current work; without it (nohz_full), such
	// a packet's frame is lent until the queue is free.
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
	q.mu.Lock()
	defer q.mu.Unlock()
	n, _ := s.rx.availableEntries(s.rx.size)
	own, _ := statesOf(s.id)
	for i := range n {
		f := s.rx.descs[(s.rx.cons+i)&(s.rx.size-1)].Addr >> s.umem.shift
		if f >= uint64(len(s.state)) || s.state[f] != q.filling {
			continue
		}
		if room, _ := q.fill.reserveEntries(1); room == 0 {
			s.state[f] = own // Reclaim returns it
			continue
		}
		q.fill.addrs[q.fill.prod&(q.fill.size-1)] = f << s.umem.shift
		q.fill.submitEntries(1)
	}
	s.rx.releaseEntries(n)
}

// takeShare removes at most as many frames from the fill ring as the socket put there. The kernel
// has unregistered the interface, so it takes none.
func (s *Socket) takeShare() {
	q := s.mates
	q.mu.Lock()
	defer q.mu.Unlock()
	own, _ := statesOf(s.id)
	for n, _ := q.fill.pendingEntries(); n > 0 && s.share > 0; n-- {
		q.fill.prod--
		f := q.fill.addrs[q.fill.prod&(q.fill.size-1)] >> s.umem.shift
		if f < uint64(len(s.state)) && s.state[f] == q.filling {
			s.state[f] = own
			s.share--
		}
	}
	q.fill.producer.Store(q.fill.prod)
}

const (
	settleTime       = 100 * time.Millisecond
	membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL
)

// partFromQueue is called when the socket is closed, with UMEM.sharing held. It returns the rings
// if they are no longer needed. The last socket takes over the frames in the fill ring, as lent by
// itself.
func (s *Socket) partFromQueue() (mappings [][]byte) {
	q, u := s.mates, s.umem
	q.mu.Lock()
	defer q.mu.Unlock()
	own, _ := statesOf(s.id)
	s.mates, s.former, s.filling = nil, q, own
	if q.users--; q.users == 0 {
		q.gone = true
		if u.queues[q.id] == q {
			delete(u.queues, q.id)
		}
		mappings, q.mappings = q.mappings, nil
		q.fill, q.completion = addrRing{ring: emptyRing()}, addrRing{ring: emptyRing()}
		u.relabel(q.filling, own)
		for len(q.members) > 0 {
			q.dismissFrames(q.members[0])
		}
		u.giveNumber(q.number)
	} else {
		q.surplus += s.share
		if s.landedAll() {
			q.dismissFrames(s)
		}
	}
	if !slices.Contains(q.members, s) {
		s.former = nil
	}
	return mappings
}

// landedAll reports whether the socket expects no completion. The caller holds mu.
func (s *Socket) landedAll() bool { return int(s.inFlight) == len(s.landed)+len(s.reclaimed) }

// dismissFrames changes the landed frames of a socket to the state of in-flight frames of a closed,
// unshared socket. The caller holds mu.
func (q *sharedQueue) dismissFrames(s *Socket) {
	for _, f := range s.landed {
		s.state[f] = s.flying
	}
	s.landed = nil
	q.members = slices.DeleteFunc(q.members, func(m *Socket) bool { return m == s })
}

func (q *sharedQueue) forgetSocket(s *Socket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dismissFrames(s)
}

// relabel changes the state of all frames that have one. No goroutine uses those; see lent for the
// race detector.
//
//go:norace
func (u *UMEM) relabel(from, to frameState) {
	for i := range u.state {
		if u.state[i] == from {
			u.state[i] = to
		}
	}
}

// awaitLanding waits until no more completions can arrive for frames that the socket sent on a
// queue which others kept when it left. Before that another socket must not send them: it would
// take the completion for its own. They are completed, or the queue's last socket has left it, or
// it lost its interface.
func (s *Socket) awaitLanding(ctx context.Context) error {
	q := s.former
	if q == nil {
		return nil
	}
	for wait := nextWait(0); ; wait = nextWait(wait) {
		landed, err := s.hasLanded(q)
		if landed {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: packets that were sent on queue %d of interface %d are not completed; close the other sockets of the queue: %w",
				ErrStillLent, q.id.queue, q.id.ifindex, errors.Join(ctx.Err(), err))
		case <-time.After(wait):
		}
	}
	q.forgetSocket(s)
	s.former = nil
	return nil
}

// hasLanded reports whether no more completions can arrive. err is why it could not check the
// interface.
func (s *Socket) hasLanded(q *sharedQueue) (landed bool, err error) {
	err = s.home.runInside(func() error {
		_, err := interfaceByIndex(q.id.ifindex)
		return err
	})
	s.umem.sharing.Lock()
	defer s.umem.sharing.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sortCompletions()
	return errors.Is(err, ErrInterfaceGone) || q.unbound || q.gone || s.landedAll(), err
}

// sortCompletions lands all completions with the sockets that sent the frames. It returns false if
// the ring is corrupt. The caller holds mu.
//
// The race detector must not see that the states are read here. The frames are in flight, so their
// sockets do not write them; but only the kernel orders these reads after the writes before
// sending.
//
//go:norace
func (q *sharedQueue) sortCompletions() (ok bool) {
	n, ok := q.completion.availableEntries(q.completion.size)
	if n == 0 || !ok {
		return ok
	}
	state, shift := q.members[0].state, q.members[0].umem.shift
next:
	for i := range n {
		f := q.completion.addrs[(q.completion.cons+i)&(q.completion.size-1)] >> shift
		if f < uint64(len(state)) {
			for _, s := range q.members {
				if state[f] == s.flying {
					state[f] = q.landed
					s.landed = append(s.landed, Frame(f))
					continue next
				}
			}
		}
		q.bad++
	}
	q.completion.releaseEntries(n)
	return true
}

// completedShared is completed for a socket that shares its queue.
func (s *Socket) completedShared(dst []Frame) (int, error) {
	q := s.mates
	q.mu.Lock()
	ok := q.sortCompletions()
	n := copy(dst, s.landed)
	s.landed = s.landed[:copy(s.landed, s.landed[n:])]
	s.out.count.BadCompletions += q.bad
	q.bad = 0
	q.mu.Unlock()
	if !ok {
		return 0, ErrRingCorrupt
	}
	for _, f := range dst[:n] {
		s.state[f] = stateYours
	}
	s.countCompleted(n)
	return n, nil
}

// endedFrames returns how many frames, at most want, Completed would return.
func (s *Socket) endedFrames(want uint32) (n uint32, ok bool) {
	if s.mates == nil {
		return s.completion.availableEntries(want)
	}
	s.mates.mu.Lock()
	defer s.mates.mu.Unlock()
	ok = s.mates.sortCompletions()
	return min(want, uint32(len(s.landed))), ok
}

// lockFill gives the caller exclusive use of the fill ring until unlockFill, if it is shared: its
// positions are those that the last user left.
func (s *Socket) lockFill() {
	if s.mates != nil {
		s.mates.takeFill(s)
	}
}

func (s *Socket) unlockFill() {
	if s.mates != nil {
		s.mates.giveFill(s)
	}
}

func (q *sharedQueue) takeFill(s *Socket) {
	q.mu.Lock()
	s.fill = q.fill
}

func (q *sharedQueue) giveFill(s *Socket) {
	q.fill = s.fill
	q.mu.Unlock()
}

// syncFillers waits until the goroutine that filled the frames of received packets has left the
// ring. The kernel had to take them from there, so the wait is only for the race detector, which
// does not see the order through the kernel.
func (q *sharedQueue) syncFillers() {
	q.mu.Lock()
	q.mu.Unlock() //nolint:staticcheck // the empty section is the purpose
}

// pollFD is the descriptor on which Poll may sleep, -1 for none.
func (s *Socket) pollFD() int {
	if s.sleepsBlind() {
		return -1
	}
	return s.fd
}

// sleepsBlind reports whether the kernel must not be asked to wake the socket: poll(2) sends the
// packets in its TX ring, and so not in turn.
func (s *Socket) sleepsBlind() bool { return s.mates != nil && s.mates.inTurn }

// sendsInTurn reports whether, on a kernel of the given release, only one socket of a queue at a
// time may send. From 6.6 on (b7f72a30e9ac) it writes a frame's address into the completion ring
// when it takes the packet, and removes the last one if it could not send the packet after all,
// even if another socket wrote that. 6.18 writes it when the packet was sent (30f241fcf52a).
func sendsInTurn(release string) bool {
	return !kernelBefore(release, 6, 6) && kernelBefore(release, 6, 18)
}

// kernelBefore reports whether a release, as "6.12.30-1", is before a version. A release that
// cannot be parsed is before all.
func kernelBefore(release string, major, minor int) bool {
	var a, b int
	_, _ = fmt.Sscanf(release, "%d.%d", &a, &b)
	return a < major || a == major && b < minor
}

// kernelRelease returns the kernel's release; tests replace it.
var kernelRelease = func() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// turnCalls are the calls of a socket that must not send while another one of its queue does.
type turnCalls struct {
	kernelCalls
	sending *sync.Mutex
}

func (c turnCalls) sendCall() unix.Errno {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.kernelCalls.sendCall()
}
