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
	// minHandshakeLimit is the most connections of one user without a session, unless the jobs may
	// have more clients: all of these may come at once.
	minHandshakeLimit = 64
)

// pendingHandshake is a connection without a session.
type pendingHandshake struct {
	user          uint32
	helloReceived bool // HELLO has arrived
}

// handshake starts a session on a connection, or refuses it.
func (a *Agent) handshake(conn *net.UnixConn) {
	who, err := sys.Credentials(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	if err = a.addHandshake(conn, who.Uid); err == nil {
		defer a.removeHandshake(conn)
		err = a.admitClient(conn, who)
	}
	if err == nil {
		_ = conn.Close() // the session has its own descriptor of the socket
		return
	}
	code := agentproto.BadHello
	_ = errors.As(err, &code)
	a.refused.addCode(code)
	a.cfg.Log.Info("refused a client", "user", who.Uid, "process", who.Pid, "reason", err)
	answer := agentproto.RefusedError{Code: code, Oldest: agentproto.Version, Newest: agentproto.Version,
		Text: err.Error()}
	_ = conn.SetWriteDeadline(time.Now().Add(helloLimit))
	_, _ = conn.Write(answer.Marshal()) // the client may have left
	_ = conn.Close()
}

// addHandshake registers a connection without a session, unless its user has too many.
func (a *Agent) addHandshake(conn *net.UnixConn, user uint32) error {
	limit := 0
	for _, j := range a.jobs {
		limit += j.cfg.Limits.Clients
	}
	for _, jobs := range a.ranges {
		limit += len(jobs) * jobs[0].of.Limits.Clients
	}
	limit = max(limit, minHandshakeLimit)
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, g := range a.handshakes {
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
	a.handshakes[conn] = pendingHandshake{user: user}
	return nil
}

// setHelloReceived records that HELLO has arrived, or that a further message is expected.
func (a *Agent) setHelloReceived(conn *net.UnixConn, user uint32, received bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handshakes[conn] = pendingHandshake{user: user, helloReceived: received}
	if a.closed && !received {
		_ = conn.Close()
	}
}

func (a *Agent) removeHandshake(conn *net.UnixConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.handshakes, conn)
}

// admitClient reads HELLO and starts a session. Its error is sent to the client.
func (a *Agent) admitClient(conn *net.UnixConn, who *unix.Ucred) error {
	_ = conn.SetReadDeadline(time.Now().Add(helloLimit))
	var b [agentproto.HelloLen + 1]byte
	n, err := conn.Read(b[:])
	if err != nil {
		return fmt.Errorf("%w: %w", agentproto.BadHello, err)
	}
	a.setHelloReceived(conn, who.Uid, true)
	_ = conn.SetReadDeadline(time.Time{})
	if n == agentproto.AskLen || n == agentproto.LearnLen {
		if who.Uid != 0 && int(who.Uid) != os.Geteuid() {
			return fmt.Errorf("%w: user %s: only root and the agent's own user may read its statistics and what clients push",
				agentproto.NotAllowed, userName(who.Uid))
		}
		if n == agentproto.LearnLen {
			return a.replyLearned(conn, who.Uid, b[:n])
		}
		return a.replyStats(conn, b[:n])
	}
	hello, err := agentproto.ParseHello(b[:n])
	if err != nil {
		return err
	}
	return a.startSession(who, hello, func() (int, error) { return agentproto.Dup(conn) },
		func(w *agentproto.Welcome, memory *os.File) error { return agentproto.SendWelcome(conn, w, memory) })
}

// Admit is the handshake of a simulation's client, whose socket it takes. welcome gets the answer,
// and the memory, which it must not close.
func (a *Agent) Admit(who *unix.Ucred, hello agentproto.Hello, socket int,
	welcome func(*agentproto.Welcome, *os.File) error) error {
	return a.startSession(who, hello, func() (int, error) { return socket, nil }, welcome)
}

// startSession starts a session on a client's socket, which it closes if it fails.
func (a *Agent) startSession(who *unix.Ucred, hello agentproto.Hello, take func() (socket int, err error),
	welcome func(*agentproto.Welcome, *os.File) error) error {
	start := func(j *job, own *ownership) error {
		socket, err := take()
		if err != nil {
			return err
		}
		s, memory, err := j.newSession(socket, who, hello, a.clients.Add(1))
		if err != nil {
			return errors.Join(err, unix.Close(socket))
		}
		defer memory.Close()
		s.own = own
		return j.addSession(s, func(nextStep uint64) error { return welcome(a.welcomeMessage(s, nextStep), memory) })
	}
	j := a.jobs[hello.Job]
	if j == nil {
		r, err := a.findRange(hello.Job)
		switch {
		case err != nil:
			return err
		case r != nil:
			return a.startRangeSession(r, who, hello, start)
		}
		return fmt.Errorf("%w: %q; it serves %s", agentproto.NoJob, hello.Job, strings.Join(a.jobNames(), ", "))
	}
	if !j.cfg.allows(who) {
		return fmt.Errorf("%w: user %s, job %s", agentproto.NotAllowed, userName(who.Uid), hello.Job)
	}
	if hello.Owner {
		return fmt.Errorf("%w: job %s has a parameter server", agentproto.Owned, hello.Job)
	}
	return start(j, nil)
}

// replyStats answers an ASK.
func (a *Agent) replyStats(conn *net.UnixConn, message []byte) error {
	if err := agentproto.ParseAsk(message); err != nil {
		return err
	}
	text, err := json.Marshal(a.Stats())
	if err != nil {
		return err
	}
	sendText(conn, text)
	return nil
}

// sendText answers with a text, and ignores errors of a closed connection.
func sendText(conn *net.UnixConn, text []byte) {
	_ = conn.SetWriteDeadline(time.Now().Add(helloLimit))
	for _, part := range answerMessages(text) {
		_, _ = conn.Write(part)
	}
}

func (a *Agent) jobNames() (names []string) {
	for name := range a.jobs {
		names = append(names, name)
	}
	for name, jobs := range a.ranges {
		names = append(names, fmt.Sprintf("%s/0 to %s/%d", name, name, len(jobs)-1))
	}
	slices.Sort(names)
	return names
}

// checkHello compares a HELLO with the job.
func (j *job) checkHello(h agentproto.Hello) error {
	if h.Dim != 0 && int(h.Dim) != j.cfg.Dim {
		return fmt.Errorf("%w: rows of job %s have %d, the client expects %d",
			agentproto.Dimension, j.cfg.Name, j.cfg.Dim, h.Dim)
	}
	if h.HotSet != [32]byte{} && h.HotSet != j.hotSet {
		return fmt.Errorf("%w: its fingerprint is %v, the client expects %x", agentproto.HotSet, j.hotSet, h.HotSet)
	}
	limit := j.cfg.Limits.Memory
	if h.BufferBytes > limit || agentproto.LayoutOf(h.Entries, h.BufferBytes).Total > limit {
		return fmt.Errorf("%w: %d bytes of buffers and two rings of %d entries in %d bytes",
			agentproto.NoMemory, h.BufferBytes, h.Entries, limit)
	}
	return nil
}

func (a *Agent) welcomeMessage(s *session, nextStep uint64) *agentproto.Welcome {
	c := &s.job.cfg
	w := &agentproto.Welcome{
		Version: agentproto.Version, Job: c.Number, Mode: uint8(c.Mode), Arithmetic: uint8(c.Arithmetic),
		Dim: uint32(c.Dim), Exponent: int32(c.Exp), Client: s.number, PID: uint32(os.Getpid()), Instance: a.instance,
		Features: agentproto.AllFeatures, NextStep: nextStep, Layout: s.layout, PreparedBytes: c.Limits.Prepared,
		HotSet: s.job.hotSet,
	}
	if c.HotSet != nil {
		w.HotRows = uint32(c.HotSet.Len())
	}
	return w
}
