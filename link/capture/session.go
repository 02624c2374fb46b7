// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/libra-ina/libra/link"
)

// Session is a running capture of another process.
type Session struct {
	src  Source
	conn *net.UnixConn
	in   *bufio.Reader
}

// Result is the summary of a capture.
type Result struct {
	Frames  uint64
	Dropped uint64 // frames that did not fit the queue
	// set if the process was killed or broke off the capture: its last frames may be missing
	Ended bool
}

// Attach starts to capture a process.
// It fails with => It fails with
func Attach(pid int) (*Session, error) {
	conn, err := dial(pid)
	if err != nil {
		return nil, fmt.Errorf("capture process %d: %w", pid, err)
	}
	s := &Session{conn: conn, in: bufio.NewReaderSize(conn, 1<<16)}
	if s.src, err = handshake(conn, s.in, request{Protocol: protocol, Frames: true}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("capture process %d: %w", pid, err)
	}
	s.src.PID = pid // whose number in its own PID namespace may differ
	return s, nil
}

// handshake sends the request and returns what the answer says of the frames: the first lines of a
// connection.
func handshake(conn *net.UnixConn, in *bufio.Reader, req request) (Source, error) {
	_ = conn.SetDeadline(time.Now().Add(handshakeLimit))
	var a answer
	err := writeLine(conn, req)
	if err == nil {
		err = readLine(in, &a)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Source{}, fmt.Errorf("it does not answer within %v: is it stopped?", handshakeLimit)
	case err != nil:
		return Source{}, fmt.Errorf("it does not answer as a libra process does: %w", err)
	case a.Denied:
		return Source{}, fmt.Errorf("%w: %s", ErrPermission, a.Error)
	case a.Error != "":
		return Source{}, errors.New(a.Error)
	}
	_ = conn.SetDeadline(time.Time{})
	return a.Source, nil
}

// Source describes the session's frames.
func (s *Session) Source() Source { return s.src }

// Save writes frames as pcapng until ctx or the process ends, or count frames are written (0: no
// limit); then it writes the statistics. None of these is an error. It can be called once.
func (s *Session) Save(ctx context.Context, w io.Writer, count uint64) (r Result, err error) {
	out, err := NewWriter(w, s.src)
	if err != nil {
		return r, err
	}
	// When ctx ends, the process sends its queued frames and the counts.
	unhook := context.AfterFunc(ctx, func() {
		_ = s.conn.CloseWrite()
		_ = s.conn.SetReadDeadline(time.Now().Add(handshakeLimit))
	})
	defer unhook()
	if err := s.copy(out, &r, count); err != nil {
		return r, err
	}
	return r, out.Close(r.Dropped)
}

func (s *Session) copy(out *Writer, r *Result, count uint64) error {
	buf := make([]byte, link.TapSnapLen)
	for {
		f, end, err := readRecord(s.in, buf)
		switch {
		case errors.Is(err, errMalformed):
			return fmt.Errorf("capture process %d: %w", s.src.PID, err)
		case err != nil:
			r.Ended = !errors.Is(err, os.ErrDeadlineExceeded)
			return nil
		case end:
			r.Dropped = f.Lost
			return nil
		}
		if err := out.Write(f); err != nil {
			return err
		}
		r.Frames++
		r.Dropped += f.Lost
		if r.Frames == count {
			return nil
		}
		if s.in.Buffered() == 0 { // a reader that follows the file gets the available frames
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}

// Close ends the capture.
func (s *Session) Close() error { return s.conn.Close() }
