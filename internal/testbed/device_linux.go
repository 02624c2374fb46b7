package testbed

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/sys"
)

// ethtoolValue is struct ethtool_value of <linux/ethtool.h>.
type ethtoolValue struct {
	cmd  uint32
	data uint32
}

// ifreqData is struct ifreq of <net/if.h> in the form that SIOCETHTOOL takes:
// the union holds a pointer. Its size is that of the whole structure.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// setFeature switches a feature of an interface in the current namespace on or off by one of ethtool's
// ETHTOOL_S... commands.
func setFeature(name string, cmd uint32, on bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	value := ethtoolValue{cmd: cmd}
	if on {
		value.data = 1
	}
	req := ifreqData{data: unsafe.Pointer(&value)}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return fmt.Errorf("ethtool command %#x on %s: %w", cmd, name, errno)
	}
	return nil
}

// SetGRO switches generic receive offload of a host's interface on or off. A bed
// has it on. Off, the host's port on the switch can transmit for XDP only while the
// host has an XDP program.
func (n *Node) SetGRO(on bool) error {
	return n.Do(func() error { return setFeature(n.Interface, unix.ETHTOOL_SGRO, on) })
}

// tuneVeth prepares a veth end in the current namespace for XDP. The end must
// be up: before, veth has no NAPI context, so the kernel refuses to make it
// threaded, and does not note that GRO makes the end a target of redirects.
//   - No transmit checksum offload: a veth pair passes "to be filled in"
//     checksums on, and an XDP program on the other side would see them wrong.
//   - GRO makes veth set up a NAPI context without an XDP program too, so that
//     the peer may redirect frames to it. (XDP_TX at the peer still needs a
//     program here: veth puts such frames into the ring, but wakes the
//     receiver only if it has a program.)
//   - Threaded NAPI where asked for.
func tuneVeth(name string, threaded bool) error {
	if err := setFeature(name, unix.ETHTOOL_STXCSUM, false); err != nil {
		return fmt.Errorf("testbed: switch transmit checksum offload off: %w", err)
	}
	if err := setFeature(name, unix.ETHTOOL_SGRO, true); err != nil {
		return fmt.Errorf("testbed: switch GRO on: %w", err)
	}
	if threaded {
		if err := sys.WriteAttr(name, "threaded", "1"); err != nil {
			return fmt.Errorf("testbed: make NAPI of %s threaded (needs Linux 5.12): %w", name, err)
		}
	}
	return nil
}
