// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentclient

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent/agentproto"
)

// listen accepts connections and does not answer.
func listen(t *testing.T) (l *net.UnixListener, socket string) {
	socket = filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, socket
}

// connect gives a client a socket, and returns its agent's end.
func connect(t *testing.T, c *Client) *net.UnixConn {
	l, socket := listen(t)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	other, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	c.conn = conn
	if c.raw, err = conn.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	return other
}

// Dial of an agent that does not answer ends with its context.
func TestDialOfAMuteAgent(t *testing.T) {
	mute, socket := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	dialled := make(chan error, 1)
	go func() {
		_, err := Dial(ctx, socket, agentproto.Hello{Job: "clicks"})
		dialled <- err
	}()
	conn, err := mute.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1024)); err != nil { // the client waits for the answer
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-dialled:
		if err == nil {
			t.Error("connected")
		}
	case <-time.After(2 * time.Minute):
		t.Error("Dial goes on")
	}
}

// A waiting client leaves the processor to others until it is woken, and a wake-up ends one sleep.
func TestSleep(t *testing.T) {
	for name, alone := range map[string]bool{"known to the runtime": false, "alone": true} {
		t.Run(name, func(t *testing.T) {
			c := &Client{Alone: alone}
			other := connect(t, c)
			if _, err := other.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			if err := c.sleep(); err != nil {
				t.Errorf("a wake-up: %v", err)
			}
			longest := time.Duration(0)
			for range 5 { // a signal may end some
				start := time.Now()
				if err := c.sleep(); err != nil {
					t.Errorf("nothing: %v", err)
				}
				longest = max(longest, time.Since(start))
			}
			if longest < 5*time.Millisecond {
				t.Errorf("the longest of 5 sleeps took %v", longest)
			}
			_ = other.Close()
			if err := c.sleep(); !errors.Is(err, io.EOF) {
				t.Errorf("the agent has gone: %v", err)
			}
		})
	}
}

// lastWords makes the agent do something just before the client uses the socket.
type lastWords struct {
	syscall.RawConn
	say func()
}

func (l lastWords) Control(use func(uintptr)) error {
	l.say()
	return l.RawConn.Control(use)
}

// An agent's answers before it ends count, even if the client was just about to sleep.
func TestLastWords(t *testing.T) {
	r := newRing(t, 4096)
	defer r.close()
	other := connect(t, r.client)
	for range 2 {
		if !r.submit(t, 64, false) {
			t.Fatal("no room")
		}
		r.take()
	}
	r.client.raw = lastWords{r.client.raw, func() {
		if !r.entries[0].done {
			r.answer(0)
			_ = other.Close()
		}
	}}
	if _, err := r.client.Wait(t.Context(), 0); err != nil {
		t.Errorf("the entry that was answered: %v", err)
	}
	if _, err := r.client.Wait(t.Context(), 1); !errors.Is(err, io.EOF) {
		t.Errorf("the other one: %v", err)
	}
}

// A client polls for completions before it sleeps, unless much is pending: a wake-up costs both
// sides a system call.
func TestLooksBeforeSleep(t *testing.T) {
	r := newRing(t, 4096)
	defer r.close()
	c := r.client
	c.idle.Limit = time.Hour
	for range 3 {
		if !r.submit(t, 64, false) {
			t.Fatal("no room")
		}
		r.take()
		ticket := len(r.entries) - 1
		time.AfterFunc(time.Millisecond, func() {
			(&agentproto.Completion{Ticket: uint64(ticket)}).Put(c.mem.Completion(uint32(ticket)))
			c.mem.CQTail.Store(uint32(ticket) + 1)
		})
		if _, err := c.Wait(t.Context(), uint64(ticket)); err != nil {
			t.Fatal(err)
		}
	}
	saved := c.idle
	c.onWay = lookFloats + 1
	ctx, cancel := context.WithCancelCause(t.Context())
	slept := errors.New("it sleeps")
	other := connect(t, c)
	go func() {
		for c.mem.ClientSleeps.Load() == 0 {
			runtime.Gosched()
		}
		cancel(slept)
		_ = other.Close()
	}()
	if err := c.read(ctx); err == nil {
		t.Error("a completion that there is not")
	}
	if c.idle != saved {
		t.Error("looked while much was on its way")
	}
}

// Pending floats are counted correctly, even if the first entry is answered after more others than
// the ring has places.
func TestCountsWhatIsOnItsWay(t *testing.T) {
	r := newRing(t, 4096)
	defer r.close()
	c := r.client
	answered := uint32(0)
	answer := func(ticket uint64) {
		(&agentproto.Completion{Ticket: ticket}).Put(c.mem.Completion(answered))
		answered++
		c.mem.CQTail.Store(answered)
		if !c.collect() {
			t.Fatal("no completion")
		}
	}
	submit := func(n uint32) uint64 {
		ticket, err := c.Submit(t.Context(), agentproto.Entry{Op: agentproto.Push, N: n, Dim: 2})
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	first := submit(100)
	for range c.welcome.Layout.Entries + 1 {
		ticket := submit(7)
		if c.onWay != 2*107 {
			t.Fatalf("%d floats are counted as on their way, want %d", c.onWay, 2*107)
		}
		answer(ticket)
	}
	answer(first)
	if c.onWay != 0 || len(c.floats) != 0 {
		t.Errorf("%d floats are counted as on their way, and %d entries, when all are answered", c.onWay, len(c.floats))
	}
}

// A session leaves no descriptor and no memory behind, neither after its end, nor if the agent
// refuses it or its memory differs from the announced one.
func TestSessionsLeaveNothing(t *testing.T) {
	layout := agentproto.LayoutOf(8, 4096)
	mem, file, err := agentproto.NewMemory(layout)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(mem.Close(), file.Close()) }()
	l, socket := listen(t)
	held := func() int {
		descriptors, err := os.ReadDir("/proc/self/fd")
		maps, err2 := os.ReadFile("/proc/self/maps")
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return len(descriptors) + strings.Count(string(maps), "memfd:libra-agent")
	}
	for name, answer := range map[string]func(*net.UnixConn) error{
		"welcome": func(conn *net.UnixConn) error {
			return agentproto.SendWelcome(conn, &agentproto.Welcome{Version: agentproto.Version, Layout: layout}, file)
		},
		"refused": func(conn *net.UnixConn) error {
			_, err := conn.Write((&agentproto.RefusedError{Code: agentproto.BadHello}).Marshal())
			return err
		},
		"other memory": func(conn *net.UnixConn) error {
			return agentproto.SendWelcome(conn, &agentproto.Welcome{Version: agentproto.Version, Layout: agentproto.LayoutOf(8, 8192)}, file)
		},
	} {
		before := held()
		answered := make(chan error, 1)
		go func() {
			conn, err := l.AcceptUnix()
			if err == nil {
				_, err = conn.Read(make([]byte, 1024))
				err = errors.Join(err, answer(conn), conn.Close())
			}
			answered <- err
		}()
		c, err := Dial(t.Context(), socket, agentproto.Hello{Job: "clicks"})
		if (err == nil) != (name == "welcome") {
			t.Errorf("%s: %v", name, err)
		}
		if c != nil && err == nil {
			if err := c.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := <-answered; err != nil {
			t.Errorf("%s: the agent: %v", name, err)
		}
		if after := held(); after != before {
			t.Errorf("%s: %d descriptors and mappings before, %d after", name, before, after)
		}
	}
}
