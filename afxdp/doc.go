// SPDX-License-Identifier: Apache-2.0

// Package afxdp is a packet engine on Linux AF_XDP sockets: it moves Ethernet frames between a
// network interface's queue and memory that the program and the kernel share, without the kernel's
// protocol stack, without cgo and without allocation.
//
// # Parts
//
//   - A [UMEM] is the shared memory, cut into chunks of equal size. A [Frame]
//     is the number of a chunk; a [Desc] identifies bytes in it.
//   - A [Pool] allocates frames to one goroutine.
//   - A [Socket] is bound to one queue of one interface and owns the four
//     rings through which frames are exchanged with the kernel.
//   - [Attach] attaches an XDP program to the interface. Its [Match] selects the
//     packets that leave the kernel's stack and reach a socket; everything else
//     continues as without it.
//   - A [Group] combines all of this for every queue of an interface: [OpenAll]
//     creates it and Group.Run runs it. Most programs need only this, [Serve], and
//     [ParseUDP] for UDP. Programs that use a [net.PacketConn] get one from
//     [ListenUDP].
//
// # First program
//
// It counts UDP packets to port 9000, on all queues of eth0, until Ctrl-C.
//
//	func main() {
//		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
//		defer cancel()
//		group, err := afxdp.OpenAll("eth0", afxdp.GroupConfig{Match: afxdp.MatchUDP(9000)})
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer group.Close()
//
//		var count atomic.Int64
//		err = group.Run(ctx, afxdp.Serve(func(s *afxdp.Socket, packets []afxdp.Desc) error {
//			count.Add(int64(len(packets))) // the bytes of one are s.UMEM().Packet(packets[0])
//			return nil
//		}))
//		if err != nil {
//			log.Print(err)
//		}
//		fmt.Println(count.Load(), "packets")
//	}
//
// # Who owns a frame
//
// A frame is in one of four states, and only its holder may access its bytes:
//
//	free       in a Pool
//	yours      returned to you by Alloc, Receive or Completed
//	filling    lent to the kernel for a packet to receive
//	in flight  lent to the kernel for transmission
//
//	           Alloc            Send
//	  free  ----------> yours ----------> in flight
//	     ^  <----------  |  ^ <----------
//	     |     Free      |  |  Completed
//	     |          Fill |  | Receive
//	     |       Release v  |
//	     +------------ filling
//
// A completed frame is yours again, with its bytes unchanged: sending the same frame again later,
// as for a retransmission, needs no copy. Every transition is checked against one state for each
// frame; a frame that is freed twice, or sent while it is in flight, is refused with
// [ErrFrameState].
//
// Frames that the kernel holds when a socket is closed stay lent: in zero-copy mode the device
// itself reads and writes the frames until the kernel has stopped the queue, some time after
// [Socket.Close]. [Socket.Reclaim], or a [Socket.Reopen] that succeeds, returns the frames when the
// device has released them; before that the error is [ErrStillLent].
//
// # Goroutines
//
// A Socket and its Pool belong to one goroutine, which should be locked to its thread
// ([PinThread]); or one goroutine receives, with the Pool, and another one sends, with its own
// Pool, without waiting for each other: [Socket] lists the methods of each. Only [Socket.Close],
// [Socket.Wake], [Socket.Info], [Socket.FD] and [Socket.Snapshot] may be called by other
// goroutines. Two goroutines in one half of a socket are detected and refused with
// [ErrConcurrentUse]. Several queues are served by several sockets, each with its own goroutine and
// its own Pool, all on one UMEM; or by one goroutine and a [Poller], which need not be locked to
// its thread if it parks ([Poller.Park]). With Config.ShareQueue several sockets serve one queue. A
// frame that one socket received can be sent by another one of the UMEM, without a copy; Completed
// of the sending socket returns it.
//
// # Memory ordering
//
// Program and kernel share ring positions and synchronise as the kernel's document requires: the
// producer of a ring writes entries and then publishes its position with a store-release; the
// consumer reads that position with a load-acquire before it reads entries. Go's sync/atomic
// operations are sequentially consistent, hence at least that strong, on every architecture; on
// arm64 they compile to LDAR and STLR. See ring.go, and
// https://docs.kernel.org/networking/af_xdp.html.
//
// # Units
//
// Lengths and offsets are bytes, of a packet including its Ethernet header; rings and pools count
// frames. Times are [time.Duration]; those of the device are nanoseconds of its own clock.
//
// # Errors
//
// Errors wrap one of the package's, or are a [FeatureError], and name the interface, queue, frame
// or number. A full ring is no error: [Socket.Send] returns how many descriptors it accepted.
// [ErrLinkDown] and [ErrInterfaceGone] leave the socket unchanged for [Socket.Recover]. After Close
// the error is [net.ErrClosed]; that and ErrConcurrentUse may be returned without a name.
//
// # Requirements
//
// Linux 6.1 or later; the package is empty on other systems. Opening a socket needs CAP_NET_RAW,
// attaching a program CAP_NET_ADMIN and CAP_BPF, and a [UMEM] beyond RLIMIT_MEMLOCK (often 8 MB)
// CAP_IPC_LOCK. A process without these can run a socket that a privileged one created; see
// [NewSocketFD]. Features that the running kernel lacks fail with a [FeatureError] that names the
// first version with them; so do features that the interface's driver lacks, see [Device].
package afxdp
