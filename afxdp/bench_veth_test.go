// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// BenchmarkVeth measures packets a second over a veth pair in copy mode. Every operation is one
// packet that arrived:
//
//	tx    a socket sends; an XDP program at the other end counts and drops
//	rx    a socket sends, a socket at the other end receives and releases
//	echo  a socket keeps 256 packets in flight, the other sends them back
//
// With "napi" the receiving ends' work is in kernel threads.
func BenchmarkVeth(b *testing.B) {
	for _, length := range []int{190, 1414} {
		for _, threaded := range []bool{false, true} {
			name := map[bool]string{false: "", true: "/napi"}[threaded]
			b.Run(fmt.Sprintf("tx/%d%s", length, name), func(b *testing.B) { benchTx(b, length, threaded) })
			b.Run(fmt.Sprintf("rx/%d%s", length, name), func(b *testing.B) { benchRx(b, length, threaded) })
			b.Run(fmt.Sprintf("echo/%d%s", length, name), func(b *testing.B) { benchEcho(b, length, threaded) })
		}
	}
}

// startRate starts the measurement. The returned function ends it and reports the rate, and this
// process's processor time per packet, which other load on the machine affects less. It includes
// the kernel's work, except in kernel threads.
func startRate(b *testing.B) (report func()) {
	b.Helper()
	before := cpuTime(b)
	b.ResetTimer()
	return func() {
		b.StopTimer()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mpps")
		b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
	}
}

func cpuTime(b *testing.B) int64 {
	b.Helper()
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return ru.Utime.Nano() + ru.Stime.Nano()
}

// flood repeatedly sends the same packets until stop returns true.
func flood(s *Socket, length int, stop func() bool) error {
	const batch = 64
	ready := make([]Frame, 8*batch)
	ready = ready[:s.Pool().AllocBatch(ready)]
	for _, f := range ready {
		fillPacket(s.UMEM().Packet(Desc{Frame: f, Off: 256, Len: uint32(length)}), 0)
	}
	descs, done := make([]Desc, batch), make([]Frame, 8*batch)
	for !stop() {
		n := min(batch, len(ready))
		for i, f := range ready[len(ready)-n:] {
			descs[i] = Desc{Frame: f, Off: 256, Len: uint32(length)}
		}
		sent, err := s.Send(descs[:n])
		if err != nil {
			return err
		}
		ready = ready[:len(ready)-sent]
		if err := s.Kick(); err != nil {
			return err
		}
		if len(ready) == 0 {
			if _, err := s.Poll(EventCompletion, time.Second); err != nil {
				return err
			}
		}
		if n, err = s.Completed(done); err != nil {
			return err
		}
		ready = append(ready, done[:n]...)
	}
	return nil
}

// countingDrop is an XDP program that counts packets in the returned map's one
// element and drops them.
func countingDrop(b *testing.B) (*ebpf.Program, *ebpf.Map) {
	b.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("drop"),
		asm.Return(),
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { prog.Close() })
	return prog, m
}

func benchTx(b *testing.B, length int, threaded bool) {
	ns := newNet(b, testbed.VethConfig{})
	prog, counter := countingDrop(b)
	attach(b, ns, AttachConfig{Interface: "b", Program: prog})
	s := open(b, ns, newPool(b, newUMEM(b, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
	threadNAPI(b, ns, threaded, "b")
	checks := 0
	report := startRate(b)
	err := flood(s, length, func() bool {
		if checks++; checks%64 != 0 {
			return false
		}
		var n uint64
		if err := counter.Lookup(uint32(0), &n); err != nil {
			b.Fatal(err)
		}
		return n >= uint64(b.N)
	})
	if err != nil {
		b.Fatal(err)
	}
	report()
}

func benchRx(b *testing.B, length int, threaded bool) {
	p := newPair(b, UMEMConfig{}, Config{})
	threadNAPI(b, p.ns, threaded, "b")
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := flood(p.a, length, func() bool { return false }); !errors.Is(err, net.ErrClosed) {
			b.Error(err)
		}
	})
	descs := make([]Desc, 64)
	report := startRate(b)
	for got := 0; got < b.N; {
		n, err := p.b.Receive(descs)
		if err != nil {
			b.Fatal(err)
		}
		if n == 0 {
			if _, err := p.b.Poll(EventRx, time.Second); err != nil {
				b.Fatal(err)
			}
		}
		if err := p.b.Release(descs[:n]); err != nil {
			b.Fatal(err)
		}
		got += n
	}
	report()
	p.a.Close()
	wg.Wait()
}

func benchEcho(b *testing.B, length int, threaded bool) {
	ns := newNet(b, testbed.VethConfig{})
	var socks [2]*Socket
	for i, name := range []string{"a", "b"} {
		prog := attach(b, ns, AttachConfig{Interface: name, Match: MatchAll()})
		socks[i] = open(b, ns, newPool(b, newUMEM(b, UMEMConfig{}), 0), Config{Interface: name, XSKMap: prog.XSKMap()})
		threadNAPI(b, ns, threaded, name)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := forward(socks[1], func(int) bool { return false }); !errors.Is(err, net.ErrClosed) {
			b.Error(err)
		}
	})
	const window = 256
	first := newPackets(b, socks[0], 0, window, length)
	if n, err := socks[0].Send(first); n != window || err != nil {
		b.Fatal(n, err)
	}
	report := startRate(b)
	if err := socks[0].Kick(); err != nil {
		b.Fatal(err)
	}
	got := 0
	err := forward(socks[0], func(n int) bool {
		got += n
		return got >= b.N
	})
	if err != nil {
		b.Fatal(err)
	}
	report()
	socks[1].Close()
	wg.Wait()
}

// forward sends packets back until stop, which gets their number, returns true.
func forward(s *Socket, stop func(int) bool) error {
	descs, done := make([]Desc, 64), make([]Frame, 256)
	for {
		n, err := s.Receive(descs)
		if err != nil {
			return err
		}
		if n == 0 {
			ev, err := s.Poll(EventRx, 2*time.Second)
			if err != nil {
				return err
			}
			if ev == 0 {
				return errors.New("all packets of the window were lost")
			}
			continue
		}
		if stop(n) {
			return nil
		}
		sent, err := s.Send(descs[:n])
		if err != nil {
			return err
		}
		if err := s.Release(descs[sent:n]); err != nil {
			return err
		}
		if err := s.Kick(); err != nil {
			return err
		}
		if n, err = s.Completed(done); err != nil {
			return err
		}
		filled, err := s.Fill(done[:n])
		if err != nil {
			return err
		}
		if err := s.Pool().Free(done[filled:n]...); err != nil {
			return err
		}
	}
}

func threadNAPI(b *testing.B, ns *testbed.Namespace, on bool, ifname string) {
	b.Helper()
	if !on {
		return
	}
	if err := ns.SetThreadedNAPI(ifname, true); err != nil {
		b.Fatal(err)
	}
}
