// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/netwatch"
	"github.com/libra-ina/libra/internal/linux/sys"
)

// UDPConn is a [net.PacketConn] on AF_XDP sockets, for programs that already use one: it receives
// on all queues of an interface, without the kernel's stack, and finds destinations by the kernel's
// routes and neighbours. It copies each payload once, and takes a lock for each; [Serve] does
// neither.
//
// Its methods may be called from any goroutine. Reading and writing do not wait for each other.
// Errors are [*net.OpError]s.
type UDPConn struct {
	group *Group
	local netip.AddrPort
	now   atomic.Pointer[udpPort]

	iface *netwatch.Interface // used by the watch
	watch *netwatch.Watch

	reading sync.Mutex // guards the fields below
	poller  *Poller
	ready   []Ready // sockets that have not been received from
	from    *Socket // source of batch
	batch   []Desc
	next    int
	store   [serveBatch]Desc

	writing sync.Mutex // guards the fields below
	free    *Pool
	done    [serveBatch]Frame

	readDeadline, writeDeadline atomic.Int64 // in nanoseconds since 1970, 0 for none
	malformed, badChecksum      atomic.Uint64

	hops      hopCache
	asking    sync.RWMutex    // read-locked during lookups in the kernel
	home      *namespace      // namespace of the lookups
	closed    context.Context // ends the lookups
	endAsking context.CancelFunc
}

var _ net.PacketConn = (*UDPConn)(nil)

// ListenUDP opens sockets on all receive queues of an interface for UDP packets to a local address
// and port that belong to no VLAN ([MatchUntagged]); all others still pass to the kernel's stack.
// An unspecified address, 0.0.0.0 or ::, means all addresses of its family; packets are then sent
// from the interface's address, as with a group's address. The kernel does not know that the port
// is taken, and knows the address only if it is the interface's, which it must be for others to
// find it. Packets that never left the machine, such as those of a veth pair, have no checksum yet
// if their sender leaves it to the device (ethtool -K veth0 tx off), and are dropped. An interface
// can have only one UDPConn ([ErrProgramAttached]), and its MTU must fit one frame, up to some
// 3,800 bytes ([ErrFrameTooSmall]). The calling thread's network namespace must be the interface's.
// Errors are those of [OpenAll].
//
// As with a kernel's socket, the interface may change meanwhile: its addresses, its MTU, its name,
// its neighbours, whether it is up. If it is deleted, reading goes on when there is one of its name
// again; if another process detaches the program, it is attached again. Such events, and what to do
// about those that stop packets, are logged with [slog.Default].
func ListenUDP(ifname string, local netip.AddrPort) (_ *UDPConn, err error) {
	ifi, err := interfaceByName(ifname)
	if err != nil {
		return nil, err
	}
	local = netip.AddrPortFrom(local.Addr().Unmap().WithZone(""), local.Port())
	if !local.IsValid() || local.Port() == 0 || len(ifi.HardwareAddr) != 6 {
		return nil, fmt.Errorf("%w: ListenUDP on %s at %v: an address, a port and an Ethernet interface are needed",
			ErrConfig, ifname, local)
	}
	everything := netip.PrefixFrom(local.Addr(), local.Addr().BitLen())
	if local.Addr().IsUnspecified() {
		everything = netip.PrefixFrom(local.Addr(), 0)
	}
	match := MatchUDP(local.Port()).And(MatchDestination(everything), MatchUntagged())
	cfg := GroupConfig{Match: match}
	if ifi.MTU+minPacket+4+kernelHeadroom <= udpFrame {
		cfg.Frames, cfg.UMEM.FrameSize = udpFrames, udpFrame
	}
	group, err := OpenAll(ifname, cfg)
	if err != nil {
		return nil, err
	}
	c := &UDPConn{
		group: group, local: local, poller: NewPoller(group.sockets...),
		free: &Pool{umem: group.umem, free: make([]Frame, 0, group.umem.Frames())},
	}
	c.closed, c.endAsking = context.WithCancel(context.Background())
	// A pool for the goroutines that write, of frames that do not wait for packets.
	var frames [1024]Frame
	n := c.sender().pool.AllocBatch(frames[:])
	if err := c.free.Free(frames[:n]...); err != nil {
		return nil, errors.Join(err, group.Close())
	}
	if held, err := sys.ThreadNamespace(); err == nil { // see UMEM.enterNamespace
		c.home = &namespace{Namespace: held}
	}
	if err := c.watchPort(ifname); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Frames of a connection leave room for a larger MTU than the interface has at the start.
const (
	udpFrame  = 4096
	udpFrames = 2048 // for each queue, half of which wait for packets
)

func (c *UDPConn) sender() *Socket { return c.group.sockets[0] }

// Group returns the sockets, for their counters. They belong to the connection.
func (c *UDPConn) Group() *Group { return c.group }

// LocalAddr returns the address that was given to ListenUDP, a [*net.UDPAddr].
func (c *UDPConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.local) }

// Close ends calls that read and write, detaches the program from the interface, and frees the
// memory.
func (c *UDPConn) Close() error {
	c.endAsking()
	err := c.group.closeSockets()
	if c.watch != nil {
		c.watch.Close()
	}
	// Callers inside leave before their resources are released.
	c.reading.Lock()
	defer c.reading.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.asking.Lock()
	defer c.asking.Unlock()
	c.batch, c.ready = nil, nil
	if c.home != nil {
		err = errors.Join(err, c.home.Close())
		c.home = nil
	}
	return errors.Join(err, c.group.Close())
}

// UDPStats counts the packets that a [UDPConn] took from the kernel and did not deliver, as the
// kernel would not have. Those that found no room are in Group.Snapshot.
type UDPStats struct {
	Malformed   uint64 // with lengths that contradict each other
	BadChecksum uint64
}

// Stats returns the counters.
func (c *UDPConn) Stats() UDPStats {
	return UDPStats{Malformed: c.malformed.Load(), BadChecksum: c.badChecksum.Load()}
}

// ReadFrom reads a packet, and returns the number of bytes of its payload that fit p and its
// sender, a [*net.UDPAddr]. Packets with a wrong checksum are dropped, see Stats.
func (c *UDPConn) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromUDPAddrPort(p)
	if err != nil {
		return n, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// ReadFromUDPAddrPort is ReadFrom without allocating memory.
func (c *UDPConn) ReadFromUDPAddrPort(p []byte) (n int, from netip.AddrPort, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if _, err := c.remaining(&c.readDeadline); err != nil {
		return 0, netip.AddrPort{}, c.opError("read", netip.AddrPort{}, err)
	}
	for {
		for c.next < len(c.batch) {
			d := c.batch[c.next]
			c.next++
			switch u, ok := ParseUDP(c.group.umem.Packet(d)); {
			case !ok:
				c.malformed.Add(1)
			case !u.ChecksumValid():
				c.badChecksum.Add(1)
			default:
				return copy(p, u.Payload()), u.Source(), nil
			}
		}
		if err := c.receive(); err != nil {
			return 0, netip.AddrPort{}, c.opError("read", netip.AddrPort{}, err)
		}
	}
}

// receive releases the packets that were read and receives others.
func (c *UDPConn) receive() error {
	if len(c.batch) > 0 {
		done := c.batch
		c.batch, c.next = nil, 0
		if err := c.from.Release(done); err != nil {
			return err
		}
	}
	for len(c.ready) > 0 {
		r := c.ready[0]
		c.ready = c.ready[1:]
		if errors.Is(r.Err, ErrLinkDown) {
			continue // it may come up again
		}
		if errors.Is(r.Err, ErrInterfaceGone) {
			c.writing.Lock() // writers leave, because sending fails too
			err := c.reviveSockets()
			c.writing.Unlock()
			c.ready = nil
			if err != nil {
				return err
			}
			continue
		}
		if r.Err != nil {
			return r.Err
		}
		n, err := r.Socket.Receive(c.store[:])
		if n > 0 || err != nil {
			c.from, c.batch = r.Socket, c.store[:n]
			return err
		}
	}
	left, err := c.remaining(&c.readDeadline)
	if err == nil {
		c.ready, err = c.poller.Poll(EventRx, left)
	}
	return err
}

// WriteTo sends a packet to a [*net.UDPAddr]. It looks the path up in the kernel, which waits up to
// three seconds for a neighbour that does not answer, or until the deadline. While the link is
// down, the first packet waits until it is up again, and others fail with [ErrLinkDown].
func (c *UDPConn) WriteTo(p []byte, to net.Addr) (int, error) {
	a, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, c.opError("write", netip.AddrPort{}, fmt.Errorf("%w: address %v is no *net.UDPAddr", ErrConfig, to))
	}
	return c.WriteToUDPAddrPort(p, a.AddrPort())
}

// WriteToUDPAddrPort is WriteTo without allocating memory, once the path is known.
func (c *UDPConn) WriteToUDPAddrPort(p []byte, to netip.AddrPort) (int, error) {
	to = netip.AddrPortFrom(to.Addr().Unmap().WithZone(""), to.Port())
	err := c.write(p, to)
	if err != nil {
		return 0, c.opError("write", to, err)
	}
	return len(p), nil
}

func (c *UDPConn) write(p []byte, to netip.AddrPort) error {
	port := c.now.Load()
	switch {
	case len(p) > port.room:
		return fmt.Errorf("%w: a payload of %d bytes; the limit on %s is %d", unix.EMSGSIZE, len(p), port.name, port.room)
	case port.lost:
		return fmt.Errorf("%w: %v is no longer an address of %s: ip address add puts it back", unix.EADDRNOTAVAIL,
			c.local.Addr(), port.name)
	case to.Addr().BitLen() != c.local.Addr().BitLen():
		return fmt.Errorf("%w: the address family of %v differs from that of %v", unix.EAFNOSUPPORT, to.Addr(),
			c.local.Addr())
	}
	way, err := c.nextHop(to.Addr())
	if err != nil {
		return err
	}
	from := c.local
	if a := from.Addr(); a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		from = netip.AddrPortFrom(way.Source, from.Port())
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err := c.remaining(&c.writeDeadline); err != nil {
		return err
	}
	if c.sender().Backlog() > 0 {
		if err := c.sender().Kick(); err != nil {
			return err
		}
	}
	f, err := c.awaitFrame()
	if err != nil {
		return err
	}
	h := UDPHeaders{FromMAC: port.mac, ToMAC: way.MAC, From: from, To: to}
	d := Desc{Frame: f, Off: uint16(c.group.umem.RxOffset())}
	length, err := h.Put(c.group.umem.Bytes(f)[d.Off:], p)
	if err != nil {
		return errors.Join(err, c.free.Free(f))
	}
	d.Len = uint32(length)
	// The completion ring has room for all of the connection's frames.
	if _, err := c.sender().Send([]Desc{d}); err != nil {
		return errors.Join(err, c.free.Free(f))
	}
	if err := c.sender().Kick(); !errors.Is(err, ErrLinkDown) {
		return err
	}
	return nil // it is queued, and after an error the caller would send it again
}

// awaitFrame waits for a free frame.
func (c *UDPConn) awaitFrame() (Frame, error) {
	for {
		n, err := c.sender().Completed(c.done[:])
		if err == nil {
			err = c.free.Free(c.done[:n]...)
		}
		if err != nil {
			return 0, err
		}
		if f, ok := c.free.Alloc(); ok {
			return f, nil
		}
		left, err := c.remaining(&c.writeDeadline)
		if err == nil {
			_, err = c.sender().Poll(EventCompletion, left)
		}
		if err != nil {
			return 0, err
		}
	}
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *UDPConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the time at which calls that read, including blocked ones, fail with
// os.ErrDeadlineExceeded; the zero time means never.
func (c *UDPConn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readDeadline, t) }

// SetWriteDeadline is the equivalent of SetReadDeadline for calls that write. One that waits for a
// neighbour ends at the deadline that was set when it began.
func (c *UDPConn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeDeadline, t) }

func (c *UDPConn) setDeadline(deadline *atomic.Int64, t time.Time) error {
	if c.sender().closing() {
		return c.opError("set", netip.AddrPort{}, net.ErrClosed)
	}
	if t.IsZero() {
		deadline.Store(0)
	} else {
		deadline.Store(max(1, t.UnixNano()))
	}
	c.sender().Wake()
	return nil
}

// remaining returns the remaining time, negative for no limit. A closed connection takes precedence
// over an expired deadline: a loop that continues after deadlines must end.
func (c *UDPConn) remaining(deadline *atomic.Int64) (time.Duration, error) {
	if c.closed.Err() != nil {
		return 0, net.ErrClosed
	}
	at := deadline.Load()
	if at == 0 {
		return -1, nil
	}
	if left := time.Until(time.Unix(0, at)); left > 0 {
		return left, nil
	}
	return 0, os.ErrDeadlineExceeded
}

// opError returns an error in the form of package net.
func (c *UDPConn) opError(op string, to netip.AddrPort, err error) error {
	e := &net.OpError{Op: op, Net: "udp", Source: c.LocalAddr(), Err: err}
	if to.IsValid() {
		e.Addr = net.UDPAddrFromAddrPort(to)
	}
	return e
}
