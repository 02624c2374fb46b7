// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"os"
	"sync"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// UMEMConfig describes the memory that program and kernel share.
type UMEMConfig struct {
	// Frames is the number of chunks. Default 4096.
	Frames int
	// FrameSize is the size of a chunk in bytes: a power of two, at least 2048 and at most the page
	// size. Default 2048. Packets larger than a frame need Config.MultiBuffer.
	FrameSize int
	// Headroom is the number of bytes, in addition to the kernel's own 256, that stay unused before
	// a received packet. It lets a program prepend headers, or choose the alignment of the payload:
	// with 2, the byte at offset 14+20+8 of a packet (a UDP payload) is 4 bytes after a multiple of
	// 8.
	Headroom int
	// HugePages chooses whether to use huge pages.
	HugePages HugePages
	// NUMAOf names an interface on whose NUMA node the memory should be. Empty: where the kernel
	// places it, which is the node of the thread that first touches it. Virtual interfaces have no
	// node.
	NUMAOf string
	// TxMetadata reserves [TxMetaSize] bytes before every packet to send for
	// requests to the device, see [UMEM.TxMeta]. Needs Linux 6.8.
	TxMetadata bool
	// SoftwareChecksum lets the kernel compute requested checksums itself in copy mode
	// (XDP_UMEM_TX_SW_CSUM), for interfaces that forward packets without completing the checksums,
	// such as veth. Needs TxMetadata.
	SoftwareChecksum bool
}

// HugePages selects the page size.
type HugePages uint8

const (
	// HugePagesTry uses huge pages of 2 MB if the system has enough reserved ones and the process's
	// cgroup may use them, and otherwise transparent ones or ordinary pages; see [UMEM.Pages] for
	// the result.
	HugePagesTry HugePages = iota
	// HugePagesRequire fails with ErrNoHugePages rather than fall back.
	HugePagesRequire
	// HugePagesOff uses ordinary pages.
	HugePagesOff
)

// kernelHeadroom is XDP_PACKET_HEADROOM: the room that the kernel reserves before every received
// packet for XDP programs to prepend headers or metadata.
const kernelHeadroom = 256

// UMEM is the memory that program and kernel share. Its methods are safe for
// concurrent use, but a frame's bytes belong to the frame's holder.
type UMEM struct {
	cfg    UMEMConfig
	mem    []byte
	state  []frameState // of each frame, see frame.go
	shift  uint         // log2(FrameSize)
	txMeta int          // bytes reserved before packets to send

	sharing sync.Mutex // held while a socket joins or leaves a shared queue; taken before mu
	queues  map[queueID]*sharedQueue

	mu      sync.Mutex // guards the fields below; set-up paths only
	carved  int        // frames already given to pools
	sockets map[uint16]*Socket
	spaces  map[sys.NamespaceID]*namespace // namespaces of the sockets

	prepared map[uint64]prepared  // by inode, see there
	numbers  [maxSockets + 1]bool // taken, see frame.go
	pages    PageKind
	closed   bool
}

// NewUMEM allocates the memory. Close frees it.
func NewUMEM(cfg UMEMConfig) (*UMEM, error) {
	cfg.Frames = cmp.Or(cfg.Frames, 4096)
	cfg.FrameSize = cmp.Or(cfg.FrameSize, 2048)
	switch page := os.Getpagesize(); {
	case cfg.Frames < 1 || cfg.Frames > 1<<24:
		return nil, fmt.Errorf("%w: UMEMConfig.Frames %d is not in [1, 2^24]", ErrConfig, cfg.Frames)
	case cfg.FrameSize < 2048 || cfg.FrameSize > page || bits.OnesCount(uint(cfg.FrameSize)) != 1:
		return nil, fmt.Errorf("%w: UMEMConfig.FrameSize %d is not a power of two in [2048, %d]", ErrConfig, cfg.FrameSize,
			page)
	case cfg.Headroom < 0 || cfg.Headroom >= cfg.FrameSize-kernelHeadroom-minPacket:
		return nil, fmt.Errorf("%w: UMEMConfig.Headroom %d leaves no room for packets in frames of %d", ErrConfig,
			cfg.Headroom, cfg.FrameSize)
	case cfg.HugePages > HugePagesOff:
		return nil, fmt.Errorf("%w: UMEMConfig.HugePages %d", ErrConfig, cfg.HugePages)
	case cfg.SoftwareChecksum && !cfg.TxMetadata:
		return nil, fmt.Errorf("%w: UMEMConfig.SoftwareChecksum needs TxMetadata", ErrConfig)
	}
	u := &UMEM{
		cfg:     cfg,
		state:   make([]frameState, cfg.Frames),
		shift:   uint(bits.TrailingZeros(uint(cfg.FrameSize))),
		sockets: make(map[uint16]*Socket),
	}
	if cfg.TxMetadata {
		u.txMeta = TxMetaSize
	}
	var err error
	u.mem, u.pages, err = allocate(cfg.Frames*cfg.FrameSize, cfg.HugePages, cfg.NUMAOf)
	if err != nil {
		return nil, err
	}
	return u, nil
}

// Frames returns the number of chunks.
func (u *UMEM) Frames() int { return u.cfg.Frames }

// FrameSize returns the size of a chunk in bytes.
func (u *UMEM) FrameSize() int { return u.cfg.FrameSize }

// RxOffset returns the offset in a chunk at which the kernel puts received packets: 256 + Headroom.
// It is also a good Desc.Off for packets to send: received and sent packets then have the same
// alignment.
func (u *UMEM) RxOffset() int { return kernelHeadroom + u.cfg.Headroom }

// RxRoom returns how many bytes of a received packet fit one frame.
func (u *UMEM) RxRoom() int { return u.cfg.FrameSize - u.RxOffset() }

// Pages returns the current kind of the memory's pages: transparent huge pages come and go.
func (u *UMEM) Pages() PageKind {
	if u.pages == PagesHuge {
		return PagesHuge
	}
	return transparentHugePages(u.mem)
}

// Bytes returns the whole chunk of f, FrameSize bytes. The frame must be yours.
func (u *UMEM) Bytes(f Frame) []byte {
	start := int(f) << u.shift
	return u.mem[start : start+u.cfg.FrameSize : start+u.cfg.FrameSize]
}

// Packet returns the bytes that d describes, without copying. Its capacity ends with the chunk.
func (u *UMEM) Packet(d Desc) []byte {
	start := int(d.Frame)<<u.shift + int(d.Off)
	end := (int(d.Frame) + 1) << u.shift
	return u.mem[start : start+int(d.Len) : end]
}

// NewPool takes n frames that are in no pool yet; n = 0 takes all remaining ones. It returns
// ErrNoFrames if there are fewer than n, or none.
func (u *UMEM) NewPool(n int) (*Pool, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil, fmt.Errorf("afxdp: UMEM is closed: %w", net.ErrClosed)
	}
	left := u.cfg.Frames - u.carved
	if n == 0 {
		n = left
	}
	if n < 1 || n > left {
		return nil, fmt.Errorf("%w: pool of %d wanted, %d of %d frames are in no pool", ErrNoFrames, n, left, u.cfg.Frames)
	}
	p := &Pool{umem: u, free: make([]Frame, 0, u.cfg.Frames)}
	// Pushed from the top, so that frames are first used in ascending order.
	for i := u.carved + n - 1; i >= u.carved; i-- {
		p.free = append(p.free, Frame(i))
	}
	u.carved += n
	return p, nil
}

// Close unmaps the memory. It returns ErrInUse while sockets are open. No goroutine may use slices
// of the memory afterwards: an access would be a segmentation fault. Frames that are still lent do
// no harm: the kernel frees their pages when the device has released them.
func (u *UMEM) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	if n := len(u.sockets); n > 0 {
		return fmt.Errorf("%w: %d sockets of the UMEM are open; close them first", ErrInUse, n)
	}
	u.closed = true
	forgetDepartures(u)
	errs := []error{release(u.mem)}
	for _, n := range u.spaces {
		errs = append(errs, n.Close())
	}
	u.spaces = nil
	return errors.Join(errs...)
}
