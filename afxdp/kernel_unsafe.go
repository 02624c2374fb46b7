// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// This is the only file of the package that imports unsafe. It turns the shared mapping of a ring
// into typed Go values, and passes the few structures to the kernel for which x/sys/unix has no
// call. The structures are declared here because x/sys generates its own from the newest header and
// has renamed their fields before.

// ringOffsets is struct xdp_ring_offset: the offsets in a ring's mapping.
type ringOffsets struct {
	Producer, Consumer, Desc, Flags uint64
}

// mmapOffsets is struct xdp_mmap_offsets.
type mmapOffsets struct {
	Rx, Tx, Fill, Completion ringOffsets
}

// umemReg is struct xdp_umem_reg. Kernels before 6.8 know it without TxMetadataLen and accept the
// longer form.
type umemReg struct {
	Addr, Len            uint64
	ChunkSize, Headroom  uint32
	Flags, TxMetadataLen uint32
}

// xdpStatistics is struct xdp_statistics.
type xdpStatistics struct {
	RxDropped, RxInvalidDescs, TxInvalidDescs          uint64
	RxRingFull, RxFillRingEmptyDescs, TxRingEmptyDescs uint64
}

// Entry sizes of the two kinds of ring.
const (
	addrSize = uint64(unsafe.Sizeof(uint64(0)))
	descSize = uint64(unsafe.Sizeof(xdpDesc{}))
)

// newRing places the positions of a ring with n entries, at least one, in its mapping.
func newRing(mem []byte, off ringOffsets, n uint32, entry uint64) (ring, error) {
	end := uint64(len(mem))
	for _, o := range []uint64{off.Producer, off.Consumer, off.Flags} {
		if o%4 != 0 || o > end-4 {
			return ring{}, fmt.Errorf("afxdp: kernel reports a ring offset of %d in a mapping of %d bytes", o, end)
		}
	}
	if off.Desc%8 != 0 || off.Desc > end || end-off.Desc < uint64(n)*entry {
		return ring{}, fmt.Errorf("afxdp: kernel reports ring entries at %d in a mapping of %d bytes", off.Desc, end)
	}
	word := func(o uint64) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[o])) }
	r := ring{producer: word(off.Producer), consumer: word(off.Consumer), flags: word(off.Flags), size: n}
	r.prod, r.cons = r.producer.Load(), r.consumer.Load()
	return r, nil
}

// newAddrRing returns a fill or completion ring in its mapping.
func newAddrRing(mem []byte, off ringOffsets, n uint32) (addrRing, error) {
	r, err := newRing(mem, off, n, addrSize)
	if err != nil {
		return addrRing{}, err
	}
	return addrRing{r, unsafe.Slice((*uint64)(unsafe.Pointer(&mem[off.Desc])), n)}, nil
}

// newDescRing returns an RX or TX ring in its mapping.
func newDescRing(mem []byte, off ringOffsets, n uint32) (descRing, error) {
	r, err := newRing(mem, off, n, descSize)
	if err != nil {
		return descRing{}, err
	}
	return descRing{r, unsafe.Slice((*xdpDesc)(unsafe.Pointer(&mem[off.Desc])), n)}, nil
}

func getsockopt(fd, level, opt int, p unsafe.Pointer, size uintptr) error {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt), uintptr(p),
		uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func getMmapOffsets(fd int) (mmapOffsets, error) {
	var off mmapOffsets
	err := getsockopt(fd, unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off))
	return off, err
}

func getStatistics(fd int) (xdpStatistics, error) {
	var st xdpStatistics
	err := getsockopt(fd, unix.SOL_XDP, unix.XDP_STATISTICS, unsafe.Pointer(&st), unsafe.Sizeof(st))
	return st, err
}

func getOptions(fd int) (flags uint32, err error) {
	err = getsockopt(fd, unix.SOL_XDP, unix.XDP_OPTIONS, unsafe.Pointer(&flags), unsafe.Sizeof(flags))
	return flags, err
}

// registerUMEM pins mem for the socket.
func registerUMEM(fd int, mem []byte, chunk, headroom, flags, txMeta uint32) error {
	reg := umemReg{
		Addr: uint64(uintptr(unsafe.Pointer(&mem[0]))), Len: uint64(len(mem)),
		ChunkSize: chunk, Headroom: headroom, Flags: flags, TxMetadataLen: txMeta,
	}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// ethtoolChannels is struct ethtool_channels.
type ethtoolChannels struct {
	Cmd                                 uint32
	MaxRx, MaxTx, MaxOther, MaxCombined uint32
	Rx, Tx, Other, Combined             uint32
}

// getChannels returns the queues that are in use.
func getChannels(ifname string) (ethtoolChannels, error) {
	ch := ethtoolChannels{Cmd: unix.ETHTOOL_GCHANNELS}
	return ch, sys.Ethtool(ifname, unsafe.Pointer(&ch))
}

// setChannels sets the queues that are in use.
func setChannels(ifname string, ch ethtoolChannels) error {
	ch.Cmd = unix.ETHTOOL_SCHANNELS
	return sys.Ethtool(ifname, unsafe.Pointer(&ch))
}

// getIndirection returns the receive queues over which the driver spreads packets by their hash;
// none if it has no such table.
func getIndirection(ifname string) ([]uint32, error) {
	// struct ethtool_rxfh_indir: command, size, entries.
	head := [2]uint32{unix.ETHTOOL_GRXFHINDIR}
	if err := sys.Ethtool(ifname, unsafe.Pointer(&head[0])); err != nil || head[1] == 0 {
		return nil, err
	}
	table := make([]uint32, 2+head[1])
	table[0], table[1] = unix.ETHTOOL_GRXFHINDIR, head[1]
	return table[2:], sys.Ethtool(ifname, unsafe.Pointer(&table[0]))
}

// setIndirection sets the queues; none leaves the choice to the driver.
func setIndirection(ifname string, queues []uint32) error {
	table := append([]uint32{unix.ETHTOOL_SRXFHINDIR, uint32(len(queues))}, queues...)
	return sys.Ethtool(ifname, unsafe.Pointer(&table[0]))
}

// flowSpec is struct ethtool_rx_flow_spec: the packets of a rule of the card, and their receive
// queue. Only the bits of a value's mask count.
type flowSpec struct {
	Type     uint32 // determines the layout of the headers below
	Value    [52]byte
	ValueExt [20]byte
	Mask     [52]byte
	MaskExt  [20]byte
	Queue    uint64
	Location uint32
	_        [4]byte
}

// flowRules is struct ethtool_rxnfc, with room for as many rules as cards have.
type flowRules struct {
	Cmd, Type uint32
	Data      uint64
	Spec      flowSpec
	Count     uint32
	Locations [8192]uint32
}

// callDriver requests the driver's rules, or changes one.
func (r *flowRules) callDriver(ifname string, command uint32) error {
	r.Cmd = command
	return sys.Ethtool(ifname, unsafe.Pointer(r))
}

// getFlags returns the features of an interface that have a flag.
func getFlags(ifname string) (uint32, error) {
	value := [2]uint32{unix.ETHTOOL_GFLAGS} // struct ethtool_value
	err := sys.Ethtool(ifname, unsafe.Pointer(&value))
	return value[1], err
}

func setFlags(ifname string, flags uint32) error {
	value := [2]uint32{unix.ETHTOOL_SFLAGS, flags}
	return sys.Ethtool(ifname, unsafe.Pointer(&value))
}

// preferNode requests that the kernel place mem on a NUMA node if it can (mbind with
// MPOL_PREFERRED). mem must not have been accessed yet.
func preferNode(mem []byte, node int) error {
	const mpolPreferred = 1
	if node < 0 || node >= 64 {
		return unix.EINVAL
	}
	mask := uint64(1) << node
	// maxnode counts bits and the kernel subtracts one from it.
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)),
		mpolPreferred, uintptr(unsafe.Pointer(&mask)), 65, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// addressOf returns the address of mem, to find it in /proc/self/smaps.
func addressOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(&mem[0])) }
