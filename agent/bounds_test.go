// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentproto"
)

// The allowed number of wake-ups is accepted; one more ends the session.
func TestWakesAreCountedExactly(t *testing.T) {
	b := newBed(t)
	c := b.dial()
	send := func(n int) {
		t.Helper()
		for range n {
			if _, err := c.Conn().Write([]byte{0}); err != nil {
				t.Fatal(err)
			}
		}
		raw, err := c.Conn().SyscallConn()
		must(t, err)
		for left, ctx := 1, within(t); left > 0 && ctx.Err() == nil; time.Sleep(time.Millisecond) {
			_ = raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		}
		time.Sleep(10 * time.Millisecond)
	}
	send(1024 + int(c.Welcome().Layout.Entries))
	if code := c.Memory().EndCode.Load(); code != 0 {
		t.Fatalf("the session has ended: %d", code)
	}
	send(1)
	for ctx := within(t); c.Memory().EndCode.Load() == 0 && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
	if code := agentproto.Code(c.Memory().EndCode.Load()); code != agentproto.WakeFlood {
		t.Errorf("one more: %v", code)
	}
}

// The limit of a user's clients is for all processes of the user.
func TestLimitIsOfTheUser(t *testing.T) {
	b := newBed(t, func(c *agent.Config) { c.Jobs[0].Limits.UserClients = 1 })
	b.dial()
	cmd := child(t, "push", b.socket, 0)
	var text bytes.Buffer
	cmd.Stderr = &text
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var one [1]byte
	if n, _ := out.Read(one[:]); n > 0 {
		_ = cmd.Process.Kill()
		t.Error("another process of the user has a session beyond the limit")
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(text.String(), "as many clients") {
		t.Errorf("%v: %s", err, text.String())
	}
}

// A user may have 64 connections without HELLO, but not 65.
func TestMostConnectionsWithoutHello(t *testing.T) {
	b := newBed(t)
	for i := range 65 {
		conn, err := net.Dial("unixpacket", b.socket)
		must(t, err)
		defer conn.Close()
		wait := 2 * time.Millisecond
		if i >= 62 {
			wait = 300 * time.Millisecond
		}
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		var one [1]byte
		_, err = conn.Read(one[:])
		var late net.Error
		if closed := !errors.As(err, &late) || !late.Timeout(); closed != (i == 64) {
			t.Errorf("connection %d is closed: %v", i, closed)
		}
	}
}
