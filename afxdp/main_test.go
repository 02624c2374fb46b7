// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// eventLimit bounds the wait for an event that a test expects, on a machine that is busy with
// other programs, too.
const eventLimit = 2 * time.Minute

func TestMain(m *testing.M) {
	run := func(child func() error) {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if n, err := strconv.Atoi(os.Getenv(childVariable)); err == nil {
		run(func() error { return child(n) })
	}
	if os.Getenv(limitedVariable) != "" {
		run(limited)
	}
	if procs := os.Getenv(cappedVariable); procs != "" {
		run(func() error { return capped(procs) })
	}
	if ifname := os.Getenv(soakVariable); ifname != "" {
		run(func() error { return soakChild(ifname) })
	}
	flag.Parse()
	if os.Geteuid() != 0 {
		// Examples have no Skip of their own; see newNet.
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// newNet returns a fresh namespace with a veth pair, "a" and "b", and checks at
// the end that the test left no descriptor behind. Without root there is no
// namespace, and it skips the test.
func newNet(t testing.TB, cfg testbed.VethConfig) *testbed.Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	before := descriptors(t)
	t.Cleanup(func() {
		if diff := cmp.Diff(before, descriptors(t)); diff != "" {
			t.Errorf("descriptors leaked (-before +after):\n%s", diff)
		}
	})
	ns, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := ns.Veth(cfg); err != nil {
		t.Fatal(err)
	}
	return ns
}

// descriptors returns the kinds of open sockets, BPF objects and eventfds. The runtime's own
// eventfd and epoll instance appear at first use, for example by reading a pipe.
func descriptors(t testing.TB) map[string]int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]int)
	for _, l := range links {
		target, err := os.Readlink(l)
		if err != nil {
			continue // the descriptor that listed the directory
		}
		kind, _, _ := strings.Cut(target, ":[")
		if strings.HasPrefix(kind, "/") {
			continue
		}
		kinds[kind]++
	}
	return kinds
}

func newUMEM(t testing.TB, cfg UMEMConfig) *UMEM {
	t.Helper()
	u, err := NewUMEM(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Errorf("close UMEM: %v", err)
		}
	})
	return u
}

func newPool(t testing.TB, u *UMEM, n int) *Pool {
	t.Helper()
	p, err := u.NewPool(n)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func attach(t testing.TB, ns *testbed.Namespace, cfg AttachConfig) *Attachment {
	t.Helper()
	var a *Attachment
	err := ns.Do(func() (err error) {
		a, err = Attach(cfg)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("detach: %v", err)
		}
	})
	return a
}

func tryOpen(ns *testbed.Namespace, pool *Pool, cfg Config) (s *Socket, err error) {
	err = ns.Do(func() (err error) {
		s, err = Open(pool, cfg)
		return err
	})
	return s, err
}

func open(t testing.TB, ns *testbed.Namespace, pool *Pool, cfg Config) *Socket {
	t.Helper()
	if cfg.BindTimeout == 0 {
		cfg.BindTimeout = eventLimit
	}
	s, err := tryOpen(ns, pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close socket: %v", err)
		}
	})
	return s
}

// pair is two sockets at the ends of a veth pair, each with its own UMEM.
type pair struct {
	ns   *testbed.Namespace
	a, b *Socket
	prog *Attachment // on b
}

// newPair opens both ends; only b receives.
func newPair(t testing.TB, umem UMEMConfig, cfg Config) pair {
	t.Helper()
	p := pair{ns: newNet(t, testbed.VethConfig{})}
	ua, ub := newUMEM(t, umem), newUMEM(t, umem)
	p.prog = attach(t, p.ns, AttachConfig{Interface: "b", Match: MatchAll()})
	cfg.Interface = "a"
	p.a = open(t, p.ns, newPool(t, ua, 0), cfg)
	cfg.Interface, cfg.XSKMap = "b", p.prog.XSKMap()
	p.b = open(t, p.ns, newPool(t, ub, 0), cfg)
	return p
}

// testEtherType is IEEE 802's first one for local experiments: the kernel's stack ignores it.
const testEtherType = 0x88b5

// fillPacket writes a packet with a number that packetNumber reads, and a
// pattern that depends on it.
func fillPacket(p []byte, number uint64) {
	clear(p[:12])
	binary.BigEndian.PutUint16(p[12:], testEtherType)
	binary.BigEndian.PutUint64(p[14:], number)
	for i := 22; i < len(p); i++ {
		p[i] = byte(number) + byte(i)
	}
}

// packetNumber checks a packet and returns its number.
func packetNumber(p []byte) (uint64, error) {
	if len(p) < 22 || binary.BigEndian.Uint16(p[12:]) != testEtherType {
		return 0, fmt.Errorf("not a test packet: % x", p[:min(len(p), 32)])
	}
	number := binary.BigEndian.Uint64(p[14:])
	for i := 22; i < len(p); i++ {
		if want := byte(number) + byte(i); p[i] != want {
			return 0, fmt.Errorf("packet %d: byte %d is %#x, want %#x", number, i, p[i], want)
		}
	}
	return number, nil
}

// newPackets allocates and fills n packets, numbered from first.
func newPackets(t testing.TB, s *Socket, first uint64, n, length int) []Desc {
	t.Helper()
	descs := make([]Desc, n)
	for i := range descs {
		f, ok := s.Pool().Alloc()
		if !ok {
			t.Fatalf("no free frame for packet %d", i)
		}
		descs[i] = Desc{Frame: f, Off: uint16(s.UMEM().RxOffset()), Len: uint32(length)}
		fillPacket(s.UMEM().Packet(descs[i]), first+uint64(i))
	}
	return descs
}

// transmit sends descs and waits until all of them completed.
func transmit(t testing.TB, s *Socket, descs []Desc) []Frame {
	t.Helper()
	var done []Frame
	buf := make([]Frame, 64)
	for total := len(descs); len(done) < total; {
		n, err := s.Send(descs)
		if err != nil {
			t.Fatal(err)
		}
		descs = descs[n:]
		if err := s.Kick(); err != nil {
			t.Fatal(err)
		}
		ev, err := s.Poll(EventCompletion, eventLimit)
		if err != nil {
			t.Fatal(err)
		}
		if ev&EventCompletion == 0 {
			t.Fatalf("no completion; %d of %d, backlog %d", len(done), total, s.Backlog())
		}
		if n, err = s.Completed(buf); err != nil {
			t.Fatal(err)
		}
		done = append(done, buf[:n]...)
	}
	return done
}

// receive waits for n packets, checks their contents, gives the frames back and
// returns their numbers in order of arrival.
func receive(t testing.TB, s *Socket, n int) []uint64 {
	t.Helper()
	var got []uint64
	descs := make([]Desc, 64)
	for len(got) < n {
		ev, err := s.Poll(EventRx, eventLimit)
		if err != nil {
			t.Fatal(err)
		}
		if ev&EventRx == 0 {
			st, _ := s.Stats()
			t.Fatalf("%d of %d packets came: %+v", len(got), n, st)
		}
		k, err := s.Receive(descs)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range descs[:k] {
			number, err := packetNumber(s.UMEM().Packet(d))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, number)
		}
		if err := s.Release(descs[:k]); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// upTo returns first, first+1, ... of n numbers.
func upTo(first uint64, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

func frameNumbers(descs []Desc) []Frame {
	out := make([]Frame, len(descs))
	for i, d := range descs {
		out[i] = d.Frame
	}
	return out
}

func sortFrames(f []Frame) []Frame {
	sort.Slice(f, func(i, j int) bool { return f[i] < f[j] })
	return f
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}
