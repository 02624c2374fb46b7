// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/wire"
)

// maxLive is the largest frame that the kernel makes for a live XDP run: it has to
// fit a page together with its headroom and what becomes its socket buffer.
const maxLive = 3000

// testLiveFrames is BPF_F_TEST_XDP_LIVE_FRAMES of linux/bpf.h.
const testLiveFrames = 1 << 1

// generator makes frames for the tested end on the opposite end's CPU.
type generator struct {
	stopping atomic.Bool
	thread   chan int // its id, as soon as it has one
	done     chan error
}

// startGenerator starts to send frames; stop ends it.
func (b *bed) startGenerator(frame []byte) *generator {
	g := &generator{done: make(chan error, 1), thread: make(chan int, 1)}
	go func() {
		g.done <- b.net.Switch().Do(func() error {
			unpin, err := sys.PinThread(b.cfg.CPUs[1])
			if err != nil {
				return err
			}
			g.thread <- unix.Gettid()
			if len(frame) > maxLive {
				err = g.sendRaw(b.testedHost().PortIndex, frame)
			} else {
				err = g.sendLive(b.testedHost().PortIndex, b.programs.generate, frame)
			}
			return errors.Join(err, unpin())
		})
	}()
	return g
}

// stopGenerator ends the generator and returns why it failed, if it did.
func (g *generator) stopGenerator() error {
	g.stopping.Store(true)
	for tid := -1; ; {
		select {
		case tid = <-g.thread:
		case err := <-g.done:
			return err
		case <-time.After(time.Millisecond):
		}
		if tid >= 0 {
			// A signal that the Go runtime takes for one of its own and that
			// ends a system call. It may come just before one, hence the loop.
			_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
		}
	}
}

// sendLive has the kernel put copies of the frame on the cable. It is one system
// call from beginning to end: to set a live run up and to take it down takes the
// kernel tens of milliseconds.
func (g *generator) sendLive(ifindex int, prog *ebpf.Program, frame []byte) error {
	ctx := xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(ifindex)}
	run := testRun{
		prog: uint32(prog.FD()), dataLen: uint32(len(frame)), data: &frame[0],
		repeat: math.MaxInt32, ctxLen: uint32(unsafe.Sizeof(ctx)), ctx: &ctx,
		flags: testLiveFrames, batch: batch,
	}
	for !g.stopping.Load() {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&run)), unsafe.Sizeof(run))
		if errno != 0 && errno != unix.EINTR {
			return fmt.Errorf("engine: generate frames (needs Linux 5.18): %w",
				os.NewSyscallError("bpf BPF_PROG_TEST_RUN", errno))
		}
	}
	return nil
}

// testRun is the "test" member of union bpf_attr of linux/bpf.h. Package ebpf's
// Program.Run restarts a call that a signal ended.
type testRun struct {
	prog, retval        uint32
	dataLen, dataOutLen uint32
	data, dataOut       *byte
	repeat, duration    uint32
	ctxLen, ctxOutLen   uint32
	ctx, ctxOut         *xdpContext
	flags, cpu, batch   uint32
	_                   uint32
}

// xdpContext is struct xdp_md of linux/bpf.h.
type xdpContext struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// sendRaw sends the frame through a packet socket past the queueing discipline.
func (g *generator) sendRaw(ifindex int, frame []byte) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return os.NewSyscallError("setsockopt PACKET_QDISC_BYPASS", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifindex}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	msgs := make([]mmsghdr, batch)
	for i := range msgs {
		msgs[i].pointTo(frame)
	}
	for !g.stopping.Load() {
		if _, err := mmsg(fd, unix.SYS_SENDMMSG, "sendmmsg", msgs, 0); err != nil {
			return err
		}
	}
	return nil
}

// testPort is the UDP source and destination port of every frame of a test.
const testPort = 9119

// buildFrame makes a frame of size bytes between the ends of the cable. Its UDP
// checksum is zero, which means absent: no program computes one.
func buildFrame(from, to wire.Endpoint, size int) ([]byte, error) {
	envelope, err := wire.NewEnvelope(from, to)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, size)
	for i := range frame[envelope.Len():] {
		frame[envelope.Len()+i] = byte(i)
	}
	envelope.Seal(frame)
	frame[envelope.Len()-2], frame[envelope.Len()-1] = 0, 0
	return frame, nil
}

func turnRound(frame []byte) {
	mac := [6]byte(frame)
	copy(frame, frame[6:12])
	copy(frame[6:], mac[:])
}
