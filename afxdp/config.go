// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"cmp"
	"fmt"
	"math/bits"
	"os"
	"time"

	"github.com/cilium/ebpf"
)

// Config describes a socket. Only Interface is required.
type Config struct {
	// Interface is the name of the interface, in the network namespace of the
	// calling thread.
	Interface string
	// Queue is the hardware queue: the socket receives the packets that the interface puts in it.
	Queue int
	// XSKMap is the map of the XDP program that redirects packets to sockets ([Attachment.XSKMap]
	// or the caller's own). Open stores the socket under key Queue. With nil the socket receives
	// nothing unless another program stores it in a map.
	XSKMap *ebpf.Map
	// Mode selects zero-copy or copy mode. Info.ZeroCopy has the result.
	Mode BindMode

	// RxRing, TxRing, FillRing and CompletionRing are ring sizes in entries:
	// powers of two. Default 2048.
	RxRing, TxRing, FillRing, CompletionRing int
	// RxFrames is the number of frames that Open moves from the pool to the fill ring. Default:
	// half the pool, rounded up, at most FillRing. Negative: none, for sockets that only send.
	RxFrames int
	// MaxPacket is the size in bytes of the largest packet to be received, including its Ethernet
	// header. Packets that do not fit a frame are dropped and counted. Open refuses frames that are
	// too small for it. The default is the largest value: a packet of the interface's MTU. With the
	// program in generic mode larger ones may arrive, see AttachGeneric.
	MaxPacket int
	// TxBudget is the number of frames that one system call may send in copy mode; Kick repeats the
	// call. A garbage collection that stops the world waits for the call to end: at half a
	// microsecond per packet, about 0.1 ms for the default of 256 and 1 ms for 2048, which saves
	// little. At most TxRing. Kernels before 6.18 always use 32; see Info.TxBudget.
	TxBudget int
	// ShareQueue lets other sockets of the UMEM bind to the same queue: each has its own rings for
	// received packets and for packets to send, and so its own goroutines. All of them must set it.
	// They share one fill ring, of the size that the first one requested: a frame that one of them
	// lent to the kernel may return with a packet for any. The XDP program selects the socket for a
	// packet: see AttachConfig.Others; each socket has its own XSKMap, and without one it only
	// sends. Release, Fill, Refill and Completed take a lock then. Frames that a socket has in
	// flight when it is closed return with their completion, or when the last socket of the queue
	// is closed; those in the fill ring return with the last socket. Copy mode only, without
	// MultiBuffer and File.
	ShareQueue bool
	// MultiBuffer lets a packet span several frames, in both directions. The
	// XDP program must be loaded with BPF_F_XDP_HAS_FRAGS, as the one of
	// Attach is with AttachConfig.MultiBuffer. Needs Linux 6.6. All sockets of
	// a UMEM must agree.
	MultiBuffer bool

	// BusyPoll makes system calls of this socket run the driver's receive
	// work in the calling thread. Nil: interrupts.
	BusyPoll *BusyPoll
	// Spin is the longest time that Poll polls the rings before it sleeps. It adapts downwards
	// while spinning does not pay off. Default 0: sleep at once. With more spinning threads than
	// cores everything gets slower.
	Spin time.Duration

	// BindTimeout is how long Open and Reopen retry while the queue is busy, and Reclaim waits in
	// zero-copy mode: the kernel releases a queue some time after its last socket was closed.
	// Default 2s.
	BindTimeout time.Duration
	// File is an AF_XDP socket that another process created, see [NewSocketFD]. Open duplicates it,
	// so the caller may close it; while any process has it open the queue stays taken, and the
	// kernel may write into the frames that it was lent: see Socket.Reclaim. After an Open that
	// could not bind it, another one may try, on the same UMEM and with rings of the same sizes.
	File *os.File
}

// BindMode selects copy or zero-copy mode.
type BindMode uint8

const (
	// BindAuto uses zero-copy if the driver supports it and respects the ownership of frames, which
	// igb does not (see the README's limits); else copy mode.
	BindAuto BindMode = iota
	// BindCopy uses copy mode.
	BindCopy
	// BindZeroCopy fails with a FeatureError if the driver has no zero-copy.
	BindZeroCopy
)

// defaultTxBudget makes the system call a small part of the cost of its packets, without delaying a
// garbage collection for long.
const defaultTxBudget = 256

// setDefaults completes a configuration and refuses invalid ones.
func (c *Config) setDefaults(pool *Pool) error {
	if pool == nil {
		return fmt.Errorf("%w: pool is nil", ErrConfig)
	}
	for _, r := range []struct {
		name string
		size *int
	}{
		{"RxRing", &c.RxRing}, {"TxRing", &c.TxRing},
		{"FillRing", &c.FillRing}, {"CompletionRing", &c.CompletionRing},
	} {
		*r.size = cmp.Or(*r.size, 2048)
		if *r.size < 1 || *r.size > 1<<20 || bits.OnesCount(uint(*r.size)) != 1 {
			return fmt.Errorf("%w: Config.%s %d is not a power of two in [1, 2^20]", ErrConfig, r.name, *r.size)
		}
	}
	if c.MultiBuffer && min(c.RxRing, c.TxRing, c.FillRing, c.CompletionRing) < 2*MaxFragments {
		return fmt.Errorf("%w: Config.MultiBuffer needs rings of at least 64 entries", ErrConfig)
	}
	if c.Queue < 0 || c.Queue > 1<<16-1 {
		return fmt.Errorf("%w: Config.Queue %d", ErrConfig, c.Queue)
	}
	if c.Mode > BindZeroCopy {
		return fmt.Errorf("%w: Config.Mode %d", ErrConfig, c.Mode)
	}
	if err := c.checkShareQueue(); err != nil {
		return err
	}
	// The kernel would accept an array, but no packet would arrive.
	if m := c.XSKMap; m != nil && (m.Type() != ebpf.XSKMap || c.Queue >= int(m.MaxEntries())) {
		return fmt.Errorf("%w: Config.XSKMap, a %v of %d entries, is no XSKMAP with queue %d; make it larger (AttachConfig.Queues), or pass another map",
			ErrConfig, m.Type(), m.MaxEntries(), c.Queue)
	}
	c.TxBudget = cmp.Or(c.TxBudget, min(c.TxRing, defaultTxBudget))
	if c.TxBudget < 0 || c.TxBudget > c.TxRing {
		return fmt.Errorf("%w: Config.TxBudget %d is not in [1, TxRing = %d]", ErrConfig, c.TxBudget, c.TxRing)
	}
	switch {
	case c.RxFrames == 0:
		c.RxFrames = min((pool.Available()+1)/2, c.FillRing)
	case c.RxFrames < 0:
		c.RxFrames = 0
	case c.RxFrames > c.FillRing:
		return fmt.Errorf("%w: Config.RxFrames %d exceeds FillRing %d", ErrConfig, c.RxFrames, c.FillRing)
	}
	if c.MaxPacket < 0 || c.Spin < 0 || c.BindTimeout < 0 {
		return fmt.Errorf("%w: Config.MaxPacket %d, Spin %v or BindTimeout %v is negative", ErrConfig, c.MaxPacket, c.Spin,
			c.BindTimeout)
	}
	if have := pool.Available(); c.RxFrames > have {
		return fmt.Errorf("%w: Config.RxFrames %d, the pool has %d", ErrNoFrames, c.RxFrames, have)
	}
	c.BindTimeout = cmp.Or(c.BindTimeout, 2*time.Second)
	if c.BusyPoll != nil {
		if err := c.BusyPoll.checkLimits(); err != nil {
			return err
		}
	}
	return nil
}

// checkShareQueue refuses configurations that sockets on one queue cannot have. In zero-copy mode
// xsk_tx_peek_release_fallback of net/xdp/xsk.c (Linux 5.11 to 6.18, at least) takes as many
// packets of all sockets as the driver has room for, and writes them into an array of the size of
// one socket's TX ring (xp_alloc_tx_descs): beyond its end, into other kernel memory. Of packets in
// several frames, the kernel may keep a part between calls, which is then mixed up with another
// socket's.
func (c *Config) checkShareQueue() error {
	switch {
	case !c.ShareQueue:
		return nil
	case c.Mode == BindZeroCopy:
		return fmt.Errorf("%w: Config.ShareQueue in zero-copy mode, where the kernel would overwrite memory of its own; use BindCopy, a socket on each queue, or a goroutine for each half of one socket", ErrConfig)
	case c.MultiBuffer:
		return fmt.Errorf("%w: Config.ShareQueue with MultiBuffer; use larger frames, or a socket on each queue", ErrConfig)
	case c.File != nil:
		return fmt.Errorf("%w: Config.ShareQueue with a passed socket, which has a queue of its own", ErrConfig)
	}
	c.Mode = BindCopy
	return nil
}
