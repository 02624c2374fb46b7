// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/linux/sys"
)

const (
	// helloLimit is the time for a client to send HELLO.
	helloLimit = 10 * time.Second
	// greetings is the most connections of one user without a session, unless the jobs may have more clients:
	// all of these may come at once.
	greetings = 64
)

// greeting is a connection without a session.
type greeting struct {
	user  uint32
	heard bool // HELLO has arrived
}

// greet starts a session on a connection, or refuses it.
func (a *Agent) greet(conn *net.UnixConn) {
	who, err := sys.Credentials(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	if err = a.enter(conn, who.Uid); err == nil {
		defer a.leave(conn)
		err = a.admit(conn, who)
	}
	if err == nil {
		_ = conn.Close() // the session has another descriptor of the socket
		return
	}
	code := agentproto.BadHello
	_ = errors.As(err, &code)
	a.refused.add(code)
	a.cfg.Log.Info("refused a client", "user", who.Uid, "process", who.Pid, "reason", err)
	answer := agentproto.RefusedError{Code: code, Oldest: agentproto.Version, Newest: agentproto.Version, Text: err.Error()}
	_ = conn.SetWriteDeadline(time.Now().Add(helloLimit))
	_, _ = conn.Write(answer.Marshal()) // the client may have left
	_ = conn.Close()
}

// enter registers a connection without a session, unless its user has too many.
func (a *Agent) enter(conn *net.UnixConn, user uint32) error {
	limit := 0
	for _, j := range a.jobs {
		limit += j.cfg.Limits.Clients
	}
	limit = max(limit, greetings)
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, g := range a.greeting {
		if g.user == user {
			n++
		}
	}
	switch {
	case a.closed:
		return agentproto.AgentClosed
	case n >= limit:
		return fmt.Errorf("%w: %d connections of user %s have no session yet", agentproto.Clients, n, userName(user))
	}
	a.greeting[conn] = greeting{user: user}
	return nil
}

// hear records that HELLO has arrived, or that another message is expected.
func (a *Agent) hear(conn *net.UnixConn, user uint32, heard bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.greeting[conn] = greeting{user: user, heard: heard}
	if a.closed && !heard {
		_ = conn.Close()
	}
}

func (a *Agent) leave(conn *net.UnixConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.greeting, conn)
}

// admit reads HELLO and starts a session. Its error is sent to the client.
func (a *Agent) admit(conn *net.UnixConn, who *unix.Ucred) error {
	_ = conn.SetReadDeadline(time.Now().Add(helloLimit))
	var b [agentproto.HelloLen + 1]byte
	n, err := conn.Read(b[:])
	if err != nil {
		return fmt.Errorf("%w: %w", agentproto.BadHello, err)
	}
	a.hear(conn, who.Uid, true)
	_ = conn.SetReadDeadline(time.Time{})
	if n == agentproto.AskLen || n == agentproto.LearnLen {
		if who.Uid != 0 && int(who.Uid) != os.Geteuid() {
			return fmt.Errorf("%w: user %s: only root and the agent's own user may read its statistics and what clients push", agentproto.NotAllowed, userName(who.Uid))
		}
		if n == agentproto.LearnLen {
			return a.learn(conn, who.Uid, b[:n])
		}
		return a.tell(conn, b[:n])
	}
	hello, err := agentproto.ParseHello(b[:n])
	if err != nil {
		return err
	}
	j := a.jobs[hello.Job]
	if j == nil {
		return fmt.Errorf("%w: %q; it serves %s", agentproto.NoJob, hello.Job, strings.Join(a.names(), ", "))
	}
	if !j.cfg.allows(who) {
		return fmt.Errorf("%w: user %s, job %s", agentproto.NotAllowed, userName(who.Uid), hello.Job)
	}
	socket, err := agentproto.Dup(conn)
	if err != nil {
		return err
	}
	s, memory, err := j.newSession(socket, who, hello, a.clients.Add(1))
	if err != nil {
		return errors.Join(err, unix.Close(socket))
	}
	defer memory.Close()
	return j.attach(s, func(nextStep uint64) error {
		return agentproto.SendWelcome(conn, a.welcome(s, nextStep), memory)
	})
}

func (a *Agent) tell(conn *net.UnixConn, message []byte) error {
	if err := agentproto.ParseAsk(message); err != nil {
		return err
	}
	text, err := json.Marshal(a.Stats())
	if err != nil {
		return err
	}
	send(conn, text)
	return nil
}

// send answers with a text, and ignores errors of a closed connection.
func send(conn *net.UnixConn, text []byte) {
	_ = conn.SetWriteDeadline(time.Now().Add(helloLimit))
	for _, part := range parts(text) {
		_, _ = conn.Write(part)
	}
}

func (a *Agent) names() (names []string) {
	for name := range a.jobs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// check compares a HELLO with the job.
func (j *job) check(h agentproto.Hello) error {
	if h.Dim != 0 && int(h.Dim) != j.cfg.Dim {
		return fmt.Errorf("%w: rows of job %s have %d, the client expects %d", agentproto.Dimension, j.cfg.Name, j.cfg.Dim, h.Dim)
	}
	if h.HotSet != [32]byte{} && h.HotSet != j.hotSet {
		return fmt.Errorf("%w: its fingerprint is %v, the client expects %x", agentproto.HotSet, j.hotSet, h.HotSet)
	}
	limit := j.cfg.Limits.Memory
	if h.BufferBytes > limit || agentproto.LayoutOf(h.Entries, h.BufferBytes).Total > limit {
		return fmt.Errorf("%w: %d bytes of buffers and two rings of %d entries in %d bytes", agentproto.NoMemory, h.BufferBytes, h.Entries, limit)
	}
	return nil
}

func (a *Agent) welcome(s *session, nextStep uint64) *agentproto.Welcome {
	c := &s.job.cfg
	w := &agentproto.Welcome{
		Version: agentproto.Version, Job: c.Number, Mode: uint8(c.Mode), Arithmetic: uint8(c.Arithmetic),
		Dim: uint32(c.Dim), Exponent: int32(c.Exp), Client: s.number, PID: uint32(os.Getpid()), Instance: a.instance,
		NextStep: nextStep, Layout: s.layout, PreparedBytes: c.Limits.Prepared, HotSet: s.job.hotSet,
	}
	if c.HotSet != nil {
		w.HotRows = uint32(c.HotSet.Len())
	}
	return w
}
