// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/wire"
)

// Join makes the interface receive the frames to the group: network cards filter out multicast
// addresses without a member socket. The member is a packet socket that receives nothing, so the
// membership ends with the link.
//
// An aggregator sends these frames to its own port, which must therefore also be the link's.
func (l *afxdpLink) Join(job uint16) error {
	group := wire.AllOf(job, l.local.Port)
	if l.joined == group.IP {
		return nil
	}
	if l.joined.IsValid() {
		return fmt.Errorf("%w: a link takes part in one job, and has already joined %v", ErrConfig, l.joined)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("link: afxdp on %s: %w", l.cfg.Interface, os.NewSyscallError("socket", err))
	}
	if err := accept(fd, l.zone, unix.PACKET_MR_MULTICAST, group.MAC); err != nil {
		unix.Close(fd)
		return fmt.Errorf("link: afxdp on %s: joining %v: %w", l.cfg.Interface, group.IP, err)
	}
	l.member, l.joined, l.groupMAC = fd, group.IP, group.MAC
	if err := l.follow.setMatch(l.at, l.newMatch()); err != nil {
		return fmt.Errorf("link: afxdp on %s: joining %v: %w", l.cfg.Interface, group.IP, err)
	}
	return nil
}

// accept makes an interface receive frames to an Ethernet address that is not its own, for as long
// as a packet socket is open.
func accept(fd int, index uint32, kind uint16, mac [6]byte) error {
	request := unix.PacketMreq{Ifindex: int32(index), Type: kind, Alen: uint16(len(mac))}
	copy(request.Address[:], mac[:])
	return os.NewSyscallError("setsockopt PACKET_ADD_MEMBERSHIP",
		unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &request))
}

func (l *afxdpLink) leaveQueue() error {
	if !l.joined.IsValid() {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(l.member))
}
