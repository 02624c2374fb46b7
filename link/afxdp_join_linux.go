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
	request := unix.PacketMreq{Ifindex: int32(l.zone), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(group.MAC))}
	copy(request.Address[:], group.MAC[:])
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &request); err != nil {
		unix.Close(fd)
		return fmt.Errorf("link: afxdp on %s: joining %v: %w", l.cfg.Interface, group.IP,
			os.NewSyscallError("setsockopt", err))
	}
	l.member, l.joined = fd, group.IP
	return nil
}

func (l *afxdpLink) leaveQueue() error {
	if !l.joined.IsValid() {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(l.member))
}
