// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/user"
	"strconv"
	"sync"
	"time"

	"github.com/libra-ina/libra/link"
)

const (
	// maxSessions limits the memory of queues.
	maxSessions = 8
	// handshakeLimit is how long either end waits for the other's line.
	handshakeLimit = 2 * time.Second
	// closeLimit is how long a process that ends waits for slow readers.
	closeLimit = time.Second
)

// Server lets other processes capture a link of this one.
type Server struct {
	tap      *link.Tap
	src      Source
	log      *slog.Logger
	listener *net.UnixListener
	stop     chan struct{}
	running  sync.WaitGroup

	mu       sync.Mutex
	conns    map[*net.UnixConn]struct{}
	closed   bool
	sessions int
}

// Serve offers a link for capture until Close. It fails with errors.ErrUnsupported without abstract
// sockets: outside Linux.
func Serve(tap *link.Tap, src Source, log *slog.Logger) (*Server, error) {
	l, err := listen(src.PID)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	s := &Server{tap: tap, src: src, log: log, listener: l, stop: make(chan struct{}), conns: map[*net.UnixConn]struct{}{}}
	s.running.Go(s.accept)
	return s, nil
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				s.log.Warn("captures are no longer possible", "error", err)
			}
			return
		}
		if !s.enter(conn) {
			conn.Close()
			return
		}
		s.running.Go(func() {
			defer s.leave(conn)
			if err := s.serve(conn); err != nil {
				s.log.Debug("capture ended", "error", err)
			}
		})
	}
}

func (s *Server) enter(conn *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[conn] = struct{}{}
	}
	return !s.closed
}

func (s *Server) leave(conn *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	conn.Close()
}

// serve answers one connection.
func (s *Server) serve(conn *net.UnixConn) error {
	_ = conn.SetDeadline(time.Now().Add(handshakeLimit))
	in := bufio.NewReaderSize(conn, lineLimit)
	var req request
	if err := readLine(in, &req); err != nil {
		return err
	}
	if refusal, denied := s.judge(conn, req); refusal != "" {
		return writeLine(conn, answer{Protocol: protocol, Error: refusal, Denied: denied})
	}
	if !req.Frames {
		return writeLine(conn, answer{Protocol: protocol, Source: s.src})
	}
	if !s.admit() {
		return writeLine(conn, answer{Protocol: protocol,
			Error: fmt.Sprintf("%d captures are running already, which is the limit", maxSessions)})
	}
	defer s.dismiss()
	// It listens before it answers, so that no frame is missed after the answer.
	listener, closed := s.tap.Listen(queueBytes)
	if closed == nil {
		defer listener.Close()
	}
	if err := writeLine(conn, answer{Protocol: protocol, Source: s.src}); err != nil {
		return err
	}
	if closed != nil {
		return writeEnd(conn, 0)
	}
	s.unlimit(conn)
	return s.stream(conn, in, listener)
}

// unlimit removes a reader's deadline, unless the process is ending.
func (s *Server) unlimit(conn *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = conn.SetDeadline(time.Time{})
	}
}

// judge returns the refusal of a request, if any.
func (s *Server) judge(conn *net.UnixConn, req request) (refusal string, denied bool) {
	uid, _, err := peer(conn)
	switch me := os.Geteuid(); {
	case err != nil:
		return err.Error(), true
	case uid != 0 && uid != me:
		return fmt.Sprintf("the process belongs to %s: capture as that user or as root", userName(me)), true
	case req.Protocol != protocol:
		return fmt.Sprintf("the process speaks version %d of the capture protocol, not %d: use the same release of libra",
			protocol, req.Protocol), false
	}
	return "", false
}

// userName returns a user's name, or the number if there is none.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return "user " + u.Username
	}
	return fmt.Sprintf("user %d", uid)
}

func (s *Server) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions == maxSessions {
		return false
	}
	s.sessions++
	return true
}

func (s *Server) dismiss() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions--
}

// stream sends frames until the link or the server is closed, or the reader closes its end.
func (s *Server) stream(conn *net.UnixConn, in io.Reader, listener *link.Listener) error {
	out := bufio.NewWriterSize(conn, 1<<16)
	over := make(chan struct{})
	s.running.Go(func() {
		defer close(over)
		gone := make(chan struct{})
		s.running.Go(func() {
			defer close(gone)
			_, _ = io.Copy(io.Discard, in) // returns when either end is closed
		})
		select {
		case <-gone:
		case <-s.stop:
		}
	})
	err := pump(listener, over, func(f link.TappedFrame) error { return writeFrame(out, f) }, out.Flush)
	if err != nil {
		return err
	}
	_, dropped := listener.Counts()
	return errors.Join(writeEnd(out, dropped), out.Flush())
}

// Close ends all captures. It gives slow readers a second to read their queues.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for conn := range s.conns {
		_ = conn.SetDeadline(time.Now().Add(closeLimit))
	}
	s.mu.Unlock()
	close(s.stop)
	err := s.listener.Close()
	s.running.Wait()
	return err
}
