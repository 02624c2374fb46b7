// SPDX-License-Identifier: Apache-2.0

package link

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"runtime"
	"slices"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// OpenAFXDP attaches an XDP program to an interface that redirects the UDP packets to the local
// port, and returns a link on AF_XDP sockets that receive them, one for each receive queue. It
// needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF. Like Link.Path, it must be called by a thread in
// the interface's network namespace. Closing the link detaches the program.
func OpenAFXDP(cfg AFXDPConfig) (Link, error) {
	l, err := openAFXDP(cfg)
	if err != nil {
		hint := ""
		if errors.Is(err, afxdp.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
			hint = "; the udp backend needs none of this"
		}
		return nil, fmt.Errorf("link: afxdp on %s: %w%s", cfg.Interface, err, hint)
	}
	return l, nil
}

func openAFXDP(cfg AFXDPConfig) (_ *afxdpLink, err error) {
	ifi, err := net.InterfaceByName(cfg.Interface)
	if err != nil {
		return nil, err
	}
	local, err := peerZone(cfg.Local.Addr().Unmap(), uint32(ifi.Index))
	if err != nil {
		return nil, fmt.Errorf("%w: AFXDPConfig.Local %v: %w", ErrConfig, cfg.Local, err)
	}
	cfg.Local = netip.AddrPortFrom(local, cfg.Local.Port())
	if cfg.Local.Port() == 0 {
		return nil, fmt.Errorf("%w: AFXDPConfig.Local %v has no port", ErrConfig, cfg.Local)
	}
	if cfg.Queue < 0 {
		return nil, fmt.Errorf("%w: AFXDPConfig.Queue is %d", ErrConfig, cfg.Queue)
	}
	if cfg.MTU < 0 {
		return nil, fmt.Errorf("%w: AFXDPConfig.MTU is %d", ErrConfig, cfg.MTU)
	}
	if err := telemetry.CheckSample(cfg.Sample); err != nil {
		return nil, fmt.Errorf("%w: AFXDPConfig.Sample: %w", ErrConfig, err)
	}
	if err := checkLocal(ifi, cfg.Local.Addr()); err != nil {
		return nil, err
	}
	if len(ifi.HardwareAddr) != 6 {
		return nil, errors.New("the interface has no Ethernet address")
	}
	cfg.Spin = cmp.Or(cfg.Spin, DefaultSpin)
	mtu := min(ifi.MTU, cmp.Or(cfg.MTU, wire.DefaultMTU), wire.MaxMTU)
	at := wire.Endpoint{MAC: [6]byte(ifi.HardwareAddr), IP: cfg.Local.Addr(), Port: cfg.Local.Port()}
	// The envelope's length depends only on the address family.
	self, err := wire.NewEnvelope(at, at)
	if err != nil {
		return nil, fmt.Errorf("headers of frames from %v: %w", at, err)
	}
	port, err := reservePort(cfg.Local, ifi.Index)
	if err != nil {
		return nil, err
	}
	l := &afxdpLink{
		cfg:   cfg,
		local: at,
		mtu:   mtu,
		limit: maxPayload(mtu, cfg.Local.Addr()),
		head:  self.Len(),
		descs: make([]afxdp.Desc, 0, batchSize),
		index: make([]int, 0, batchSize),
		done:  make([]afxdp.Frame, 4*batchSize),
		tap:   newTap(),
		draw:  telemetry.NewDraw(cfg.Sample),
		port:  port,
		zone:  uint32(ifi.Index),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	queues := cfg.Queue + 1
	if rx, _, err := afxdp.QueueCounts(cfg.Interface); err == nil {
		queues = max(queues, rx)
	}
	program := afxdp.AttachConfig{Interface: cfg.Interface, Match: l.newMatch(), Queues: queues}
	if cfg.Sample != 0 {
		program.Stamp = &afxdp.Stamp{Offset: wire.SeqOffset, Bits: bits.TrailingZeros(uint(cfg.Sample))}
	}
	if l.at, err = afxdp.Attach(program); err != nil {
		return nil, err
	}
	if err := l.openSockets(queues); err != nil {
		return nil, err
	}
	if err := l.beginFollowing(); err != nil {
		return nil, err
	}
	return l, nil
}

// newMatch returns what the link delivers. Frames to other addresses are those of the kernel's
// sockets, or of hosts for which this one is a router.
func (l *afxdpLink) newMatch() afxdp.Match {
	to := []netip.Prefix{netip.PrefixFrom(l.local.IP, l.local.IP.BitLen())}
	if l.joined.IsValid() {
		to = append(to, netip.PrefixFrom(l.joined, l.joined.BitLen()))
	}
	return afxdp.MatchUDP(l.local.Port).And(afxdp.MatchDestination(to...))
}

// checkLocal checks that the interface has the address, so that the kernel answers ARP for it.
func checkLocal(ifi *net.Interface, ip netip.Addr) error {
	addrs, err := ifi.Addrs() // none with an error
	var have []netip.Addr
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if b, ok := netip.AddrFromSlice(n.IP); ok {
				have = append(have, b.Unmap())
			}
		}
	}
	if !slices.Contains(have, ip) {
		return errors.Join(err, fmt.Errorf("%w: AFXDPConfig.Local: %v is not an address of %s, which has %v", ErrConfig, ip,
			ifi.Name, have))
	}
	return nil
}

// chunkFor returns the size of a link's chunks: 2 KB, unless frames of its MTU do not fit with the
// 256 bytes that the kernel reserves before a packet, and payloadAlign. 4 KB have room for frames
// of [wire.MaxMTU], and for the 320 bytes of struct skb_shared_info that drivers such as veth keep
// at the end of receive buffers.
func chunkFor(mtu int) int {
	const headroom, small = 256, 2048
	if headroom+payloadAlign+frameHead+mtu <= small {
		return small
	}
	return 2 * small
}

func (l *afxdpLink) openSockets(queues int) (err error) {
	perQueue := max(rxFramesMin, rxFrames/queues)
	if l.umem, err = afxdp.NewUMEM(afxdp.UMEMConfig{
		Frames: queues*perQueue + linkBuffers, FrameSize: chunkFor(l.mtu), Headroom: payloadAlign, NUMAOf: l.cfg.Interface,
	}); err != nil {
		return err
	}
	if l.pool, err = l.umem.NewPool(0); err != nil {
		return err
	}
	l.flying = make([]bool, l.umem.Frames())
	l.dropped = make([]bool, l.umem.Frames())
	mode := afxdp.BindAuto
	if l.cfg.ZeroCopy {
		mode = afxdp.BindZeroCopy
	}
	for q := range queues {
		s, err := afxdp.Open(l.pool, afxdp.Config{
			Interface: l.cfg.Interface, Queue: q, Mode: mode, XSKMap: l.at.XSKMap(), RxFrames: perQueue, MaxPacket: l.mtu +
				frameHead, Spin: max(0, l.cfg.Spin),
		})
		if err != nil {
			return fmt.Errorf("queue %d: %w", q, err)
		}
		l.socks = append(l.socks, s)
		l.rx = append(l.rx, rxQueue{descs: make([]afxdp.Desc, batchSize)[:0], kept: make([]bool, batchSize)})
	}
	l.tx = l.socks[l.cfg.Queue]
	l.poller = afxdp.NewPoller(l.socks...)
	if runtime.GOMAXPROCS(0) > 1 {
		return nil
	}
	// A single processor would move from thread to thread around each sleep. With several, the
	// opposite holds: to run a goroutine that has parked, the scheduler wakes a thread that looks
	// for it.
	return l.poller.Park()
}
