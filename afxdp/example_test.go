// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// The examples run on a veth pair whose ends are "a" and "b", so that they can be tried without a
// network card. In your own program leave out network(), name your interface, and make calls
// directly instead of in Do.

// fatal is a log.Fatal that runs deferred functions.
func fatal(v ...any) { panic(fmt.Sprint(v...)) }

// network returns a namespace with the pair.
func network(cfg testbed.VethConfig) *testbed.Namespace {
	ns, err := testbed.NewNamespace()
	if err != nil {
		fatal(err)
	}
	if err := ns.Veth(cfg); err != nil {
		fatal(err)
	}
	return ns
}

// do runs fn in the interfaces' namespace.
func do(ns *testbed.Namespace, fn func() error) {
	if err := ns.Do(fn); err != nil {
		fatal(err)
	}
}

// memory returns a UMEM and a pool of all its frames.
func memory(cfg afxdp.UMEMConfig) (*afxdp.UMEM, *afxdp.Pool) {
	umem, err := afxdp.NewUMEM(cfg)
	if err != nil {
		fatal(err)
	}
	pool, err := umem.NewPool(0)
	if err != nil {
		fatal(err)
	}
	return umem, pool
}

// packet allocates a frame and writes an Ethernet packet of an experimental
// type into it.
func packet(pool *afxdp.Pool, length int) afxdp.Desc {
	frame, ok := pool.Alloc()
	if !ok {
		fatal(afxdp.ErrNoFrames)
	}
	umem := pool.UMEM()
	d := afxdp.Desc{Frame: frame, Off: uint16(umem.RxOffset()), Len: uint32(length)}
	b := umem.Packet(d)
	clear(b)
	binary.BigEndian.PutUint16(b[12:], 0x88b5)
	return d
}

// generate sends n packets from a queue of "a" and waits until they are sent.
func generate(ns *testbed.Namespace, queue, n int) {
	umem, pool := memory(afxdp.UMEMConfig{})
	var sock *afxdp.Socket
	do(ns, func() (err error) {
		sock, err = afxdp.Open(pool, afxdp.Config{Interface: "a", Queue: queue, RxFrames: -1})
		return err
	})
	for range n {
		if _, err := sock.Send([]afxdp.Desc{packet(pool, 100)}); err != nil {
			fatal(err)
		}
	}
	if err := sock.Kick(); err != nil {
		fatal(err)
	}
	if err := errors.Join(sock.Close(), umem.Close()); err != nil {
		fatal(err)
	}
}

// Receive packets and count them.
func ExampleSocket_Receive() {
	ns := network(testbed.VethConfig{})
	defer ns.Close()
	unpin, err := afxdp.PinThread(-1)
	if err != nil {
		fatal(err)
	}
	defer func() {
		if err := unpin(); err != nil {
			fatal(err)
		}
	}()

	umem, pool := memory(afxdp.UMEMConfig{})
	var (
		prog *afxdp.Attachment
		sock *afxdp.Socket
	)
	do(ns, func() (err error) {
		if prog, err = afxdp.Attach(afxdp.AttachConfig{Interface: "b", Match: afxdp.MatchAll()}); err != nil {
			return err
		}
		sock, err = afxdp.Open(pool, afxdp.Config{Interface: "b", XSKMap: prog.XSKMap()})
		return err
	})
	generate(ns, 0, 100)

	descs := make([]afxdp.Desc, 64)
	packets, bytes := 0, 0
	for packets < 100 {
		if _, err := sock.Poll(afxdp.EventRx, time.Second); err != nil {
			fatal(err)
		}
		n, err := sock.Receive(descs)
		if err != nil {
			fatal(err)
		}
		for _, d := range descs[:n] {
			packets++
			bytes += len(umem.Packet(d))
		}
		if err := sock.Release(descs[:n]); err != nil {
			fatal(err)
		}
	}
	fmt.Println(packets, "packets,", bytes, "bytes")
	// First the program, so that packets go to the kernel's stack again.
	if err := errors.Join(prog.Close(), sock.Close(), umem.Close()); err != nil {
		fatal(err)
	}
	// Output: 100 packets, 10000 bytes
}

// Send every packet back to its sender, without copying it.
func ExampleSocket_Fill_echo() {
	ns := network(testbed.VethConfig{})
	defer ns.Close()
	umem, pool := memory(afxdp.UMEMConfig{})
	var (
		prog *afxdp.Attachment
		sock *afxdp.Socket
	)
	do(ns, func() (err error) {
		if prog, err = afxdp.Attach(afxdp.AttachConfig{Interface: "b", Match: afxdp.MatchAll()}); err != nil {
			return err
		}
		sock, err = afxdp.Open(pool, afxdp.Config{Interface: "b", XSKMap: prog.XSKMap()})
		return err
	})
	generate(ns, 0, 100)

	var (
		descs  = make([]afxdp.Desc, 64)
		frames = make([]afxdp.Frame, 64)
		echoed = 0
	)
	for echoed < 100 {
		if _, err := sock.Poll(afxdp.EventRx, time.Second); err != nil {
			fatal(err)
		}
		n, err := sock.Receive(descs)
		if err != nil {
			fatal(err)
		}
		for _, d := range descs[:n] {
			b := umem.Packet(d)
			for i := range 6 { // swap the Ethernet addresses
				b[i], b[6+i] = b[6+i], b[i]
			}
		}
		sent, err := sock.Send(descs[:n])
		if err != nil {
			fatal(err)
		}
		echoed += sent
		// Packets without room in the TX ring are dropped, as by a switch.
		if err := sock.Release(descs[sent:n]); err != nil {
			fatal(err)
		}
		if err := sock.Kick(); err != nil {
			fatal(err)
		}
		// Sent frames can receive new packets.
		if n, err = sock.Completed(frames); err != nil {
			fatal(err)
		}
		filled, err := sock.Fill(frames[:n])
		if err != nil {
			fatal(err)
		}
		if err := pool.Free(frames[filled:n]...); err != nil {
			fatal(err)
		}
	}
	fmt.Println("echoed", echoed)
	if err := errors.Join(prog.Close(), sock.Close(), umem.Close()); err != nil {
		fatal(err)
	}
	// Output: echoed 100
}

// Send at a fixed rate. The same frames are sent repeatedly: when their transmission is complete,
// the program owns them again, with their contents.
func ExampleSocket_Send_rate() {
	ns := network(testbed.VethConfig{})
	defer ns.Close()
	umem, pool := memory(afxdp.UMEMConfig{})
	var sock *afxdp.Socket
	do(ns, func() (err error) {
		sock, err = afxdp.Open(pool, afxdp.Config{Interface: "a", RxFrames: -1})
		return err
	})
	const batch, batches = 8, 20
	var ready []afxdp.Frame
	for range 4 * batch {
		ready = append(ready, packet(pool, 190).Frame)
	}
	descs, done := make([]afxdp.Desc, batch), make([]afxdp.Frame, batch)
	tick := time.NewTicker(time.Millisecond) // 8 packets each: 8,000 a second
	defer tick.Stop()
	for range batches {
		<-tick.C
		for len(ready) < batch {
			if _, err := sock.Poll(afxdp.EventCompletion, time.Second); err != nil {
				fatal(err)
			}
			n, err := sock.Completed(done)
			if err != nil {
				fatal(err)
			}
			ready = append(ready, done[:n]...)
		}
		for i := range descs {
			descs[i] = afxdp.Desc{Frame: ready[i], Off: uint16(umem.RxOffset()), Len: 190}
		}
		n, err := sock.Send(descs)
		if err != nil {
			fatal(err)
		}
		ready = ready[n:]
		if err := sock.Kick(); err != nil {
			fatal(err)
		}
	}
	stats, err := sock.Stats()
	if err != nil {
		fatal(err)
	}
	fmt.Println("sent", stats.TxSubmitted)
	if err := errors.Join(sock.Close(), umem.Close()); err != nil {
		fatal(err)
	}
	// Output: sent 160
}

// Serve two queues with one goroutine and one UMEM.
func ExamplePoller() {
	ns := network(testbed.VethConfig{Queues: 2})
	defer ns.Close()
	umem, pool := memory(afxdp.UMEMConfig{})
	var (
		prog  *afxdp.Attachment
		socks [2]*afxdp.Socket
	)
	do(ns, func() (err error) {
		if prog, err = afxdp.Attach(afxdp.AttachConfig{Interface: "b", Match: afxdp.MatchAll()}); err != nil {
			return err
		}
		for q := range socks {
			cfg := afxdp.Config{Interface: "b", Queue: q, XSKMap: prog.XSKMap(), RxFrames: 1024}
			if socks[q], err = afxdp.Open(pool, cfg); err != nil {
				return err
			}
		}
		return nil
	})
	generate(ns, 0, 30)
	generate(ns, 1, 50)

	poller := afxdp.NewPoller(socks[:]...)
	descs := make([]afxdp.Desc, 64)
	var count [2]int
	for count[0]+count[1] < 80 {
		ready, err := poller.Poll(afxdp.EventRx, time.Second)
		if err != nil {
			fatal(err)
		}
		for _, r := range ready {
			if r.Err != nil {
				fatal(r.Err) // the others could continue
			}
			n, err := r.Socket.Receive(descs)
			if err != nil {
				fatal(err)
			}
			count[r.Socket.Info().Queue] += n
			if err := r.Socket.Release(descs[:n]); err != nil {
				fatal(err)
			}
		}
	}
	fmt.Println("queue 0:", count[0], "queue 1:", count[1])
	if err := errors.Join(prog.Close(), socks[0].Close(), socks[1].Close(), umem.Close()); err != nil {
		fatal(err)
	}
	// Output: queue 0: 30 queue 1: 50
}

// Packets that are larger than a frame are lists of descriptors.
func ExampleConfig_multiBuffer() {
	ns := network(testbed.VethConfig{MTU: 9000})
	defer ns.Close()
	umem, pool := memory(afxdp.UMEMConfig{})
	var (
		prog *afxdp.Attachment
		a, b *afxdp.Socket
	)
	do(ns, func() (err error) {
		if prog, err = afxdp.Attach(afxdp.AttachConfig{Interface: "b", Match: afxdp.MatchAll(), MultiBuffer: true}); err != nil {
			return err
		}
		if a, err = afxdp.Open(pool, afxdp.Config{Interface: "a", MultiBuffer: true, RxFrames: -1}); err != nil {
			return err
		}
		b, err = afxdp.Open(pool, afxdp.Config{Interface: "b", MultiBuffer: true, XSKMap: prog.XSKMap()})
		return err
	})
	jumbo := []afxdp.Desc{packet(pool, 1500), packet(pool, 1500), packet(pool, 1000)}
	jumbo[0].Flags, jumbo[1].Flags = afxdp.More, afxdp.More
	if n, err := a.Send(jumbo); n != len(jumbo) || err != nil {
		fatal(n, err)
	}
	if err := a.Kick(); err != nil {
		fatal(err)
	}
	if _, err := b.Poll(afxdp.EventRx, time.Minute); err != nil {
		fatal(err)
	}
	descs := make([]afxdp.Desc, afxdp.MaxFragments)
	n, err := b.Receive(descs)
	if err != nil {
		fatal(err)
	}
	total := 0
	for _, d := range descs[:n] {
		total += int(d.Len)
	}
	fmt.Println(total, "bytes in", n, "frames of", umem.FrameSize())
	if err := errors.Join(prog.Close(), a.Close(), b.Close(), umem.Close()); err != nil {
		fatal(err)
	}
	// Output: 4000 bytes in 3 frames of 2048
}

// A privileged process creates the socket, a process without privileges runs it. Here, both are
// this process; see os/exec.Cmd.ExtraFiles for passing it.
func ExampleNewSocketFD() {
	ns := network(testbed.VethConfig{})
	defer ns.Close()

	// Privileged: attach, create the socket.
	var prog *afxdp.Attachment
	do(ns, func() (err error) {
		prog, err = afxdp.Attach(afxdp.AttachConfig{Interface: "b", Match: afxdp.MatchAll()})
		return err
	})
	var file *os.File
	do(ns, func() (err error) {
		file, err = afxdp.NewSocketFD("b")
		return err
	})

	// Unprivileged: the descriptor arrives, for example, as os.NewFile(3, "xsk"). 256 frames fit
	// the usual RLIMIT_MEMLOCK.
	umem, pool := memory(afxdp.UMEMConfig{Frames: 256})
	var sock *afxdp.Socket
	do(ns, func() (err error) {
		sock, err = afxdp.Open(pool, afxdp.Config{Interface: "b", File: file})
		return err
	})

	// Privileged, when the other has reported that it is ready: enter the socket in the map.
	if err := prog.XSKMap().Put(uint32(0), uint32(file.Fd())); err != nil {
		fatal(err)
	}
	generate(ns, 0, 1)
	ev, err := sock.Poll(afxdp.EventRx, time.Minute)
	fmt.Println("packet came:", ev == afxdp.EventRx)
	if err := errors.Join(err, prog.Close(), sock.Close(), umem.Close(), file.Close()); err != nil {
		fatal(err)
	}
	// Output: packet came: true
}
