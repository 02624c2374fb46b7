// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/internal/test/refuse"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// Calls that have returned leave nothing at their contexts, which may last much longer.
func TestCallsLeaveTheirContexts(t *testing.T) {
	b := newBed(t)
	asks, learns, until, serves := bedtest.NewContext(t), bedtest.NewContext(t), bedtest.NewContext(t), bedtest.NewContext(t)
	if _, err := agent.Ask(asks, b.socket); err != nil {
		t.Error(err)
	}
	if _, err := agent.Learn(learns, until, b.socket, "absent", 10); !errors.Is(err, agentproto.NoJob) {
		t.Error(err)
	}
	a, err := agent.Listen(agent.Config{
		Socket: filepath.Join(shortDir(t), "sock"), Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{Name: jobName, Worker: coldWorker(t, nil), Dim: dim}},
	})
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- a.Serve(serves) }()
	must(t, errors.Join(a.Close(), <-served))
	for name, ctx := range map[string]bedtest.Context{"Ask": asks, "Learn": learns, "Learn, until then": until, "Serve": serves} {
		if n := ctx.Waiting(); n != 0 {
			t.Errorf("%s leaves %d that wait for the end of its context", name, n)
		}
	}
}

// Clients, refused clients and requests to the agent leave no descriptor on either side.
func TestNoDescriptorIsLeft(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // garbage collection closes forgotten ones
	const clients = 10
	b := newBed(t)
	held := func() int {
		t.Helper()
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all)
	}
	round := func(what func()) (before int) {
		before = held()
		for range clients {
			what()
		}
		return before
	}
	for name, what := range map[string]func(){
		"clients": func() {
			c := b.dial()
			must(t, errors.Join(c.Flush(within(t)), c.Close()))
		},
		"refused clients": func() {
			if _, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: jobName, BufferBytes: 1 << 62}); !errors.Is(err, agentproto.NoMemory) {
				t.Error(err)
			}
		},
		"those that ask": func() {
			if _, err := agent.Ask(within(t), b.socket); err != nil {
				t.Error(err)
			}
		},
	} {
		what() // descriptors that are opened once
		b.idle(0)
		before := round(what)
		for ctx := within(t); held() > before; runtime.Gosched() { // the agent closes its side a moment later
			if ctx.Err() != nil {
				t.Fatalf("%s: %d descriptors, %d before", name, held(), before)
			}
		}
	}
}

// An agent that is closed does not wait for silent connections, which otherwise have more time.
func TestCloseDoesNotWaitForTheMute(t *testing.T) {
	b := newBed(t)
	conn, err := net.Dial("unixpacket", b.socket)
	must(t, err)
	defer conn.Close()
	must(t, b.dial().Flush(within(t))) // the agent has also accepted the previous one
	begun := time.Now()
	must(t, b.agent.Close())
	if took := time.Since(begun); took > 8*time.Second { // of the 10 that it has
		t.Errorf("it takes %v", took)
	}
	must(t, conn.SetReadDeadline(time.Now().Add(8*time.Second)))
	answer := make([]byte, 1<<10)
	n, err := conn.Read(answer)
	if n > 0 { // the agent had accepted it, and not yet registered it
		n, err = conn.Read(answer)
	}
	if n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is still there: %d, %v", n, err)
	}
}

// The error for a socket that cannot be replaced or configured names the path and the system's
// error.
func TestSocketCannotBeMade(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("refusing system calls needs root")
	}
	path := filepath.Join(shortDir(t), "sock")
	tries := func(number uintptr) error {
		return refuse.Run(func() error { return agent.TrySocket(path) }, refuse.Call{Number: number, Err: unix.EPERM})
	}
	if err := tries(unix.SYS_FCHMODAT); !errors.Is(err, unix.EPERM) || !strings.HasPrefix(err.Error(), "agent: socket "+path+": chmod ") {
		t.Errorf("its mode: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	if err := tries(unix.SYS_UNLINKAT); !errors.Is(err, unix.EPERM) || !strings.HasPrefix(err.Error(), "agent: socket "+path+", left behind: ") {
		t.Errorf("one that was left behind: %v", err)
	}
}

// An agent is closed while its host meets the others by frames, and they do not arrive: the step is
// abandoned, and its parties get the reason.
func TestCloseLeavesAStepInFrames(t *testing.T) {
	arrived := make(chan struct{}, 100)
	w := coldWorker(t, func(*transport.Server, wire.StepEnd) bool {
		select {
		case arrived <- struct{}{}:
		default:
		}
		return true // and its sums never come
	})
	socket := filepath.Join(shortDir(t), "agent.sock")
	a := serve(t, agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{
		Name: jobName, Worker: w, Dim: dim, SumsInFrames: true,
		Reduce: func(ctx context.Context, _ uint64, _ agent.Arrival) (agent.Sums, error) {
			<-ctx.Done()
			return agent.Sums{}, ctx.Err()
		},
	}}})
	c, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: jobName, Parties: 1})
	must(t, err)
	defer c.Close()
	ticket, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.Reduce})
	must(t, err)
	<-arrived
	must(t, a.Close())
	if held := a.Stats().Jobs[0].Memory; held != 0 {
		t.Errorf("%d bytes of memory are held", held)
	}
	if got, err := c.Wait(within(t), ticket); err == nil && got.Status != agentproto.AgentClosed || err != nil && !errors.Is(err, agentproto.AgentClosed) {
		t.Errorf("the party is told %+v, %v", got, err)
	}
}
