// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/link"
)

// unserved waits until no socket listens on this process's name. A thread in epoll_wait may hold a
// closed socket for a moment longer.
func unserved(t *testing.T) {
	t.Helper()
	name := prefix + strconv.Itoa(os.Getpid())
	for range 5000 {
		if !slices.Contains(sockets("/proc/self"), name) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s is still open", name)
}

func serve(t *testing.T, l *loop) *Server {
	t.Helper()
	unserved(t)
	s, err := Serve(link.TapOf(l.Link), testSource(l.Local().Port), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func attach(t *testing.T) *Session {
	t.Helper()
	s, err := Attach(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// saving is a session during Save.
type saving struct {
	file   bytes.Buffer
	result Result
	err    error
	done   chan struct{}
}

func save(ctx context.Context, s *Session, count uint64) *saving {
	v := &saving{done: make(chan struct{})}
	go func() {
		defer close(v.done)
		v.result, v.err = s.Save(ctx, &v.file, count)
	}()
	return v
}

// wait checks that the number of saved frames equals the count.
func (v *saving) wait(t *testing.T) []uint32 {
	t.Helper()
	<-v.done
	got := read(t, &v.file)
	if v.err != nil || uint64(len(got.frames)) != v.result.Frames || got.intf.Statistics.PacketsDropped != v.result.Dropped {
		t.Fatalf("%+v, %v; %d frames in the file, %+v", v.result, v.err, len(got.frames), got.intf.Statistics)
	}
	return sequence(t, got.frames)
}

// TestSessions captures a link three times at once: up to a count, until the reader ends it, and
// until the link is closed.
func TestSessions(t *testing.T) {
	l := openLoop(t)
	s := serve(t, l)
	if err := listed(t); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	counted := save(t.Context(), attach(t), 10)
	stopped, whole := save(ctx, attach(t), 0), save(t.Context(), attach(t), 0)
	l.send(1, 100, 200)
	if seqs := counted.wait(t); len(seqs) != 10 || seqs[9] != 10 {
		t.Errorf("until 10 frames: %v", seqs)
	}
	cancel()
	if seqs := stopped.wait(t); len(seqs) != 100 || stopped.result.Ended {
		t.Errorf("until stopped: %v, %+v", seqs, stopped.result)
	}
	l.send(101, 100, 200)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if seqs := whole.wait(t); len(seqs) != 200 || seqs[199] != 200 || whole.result.Ended {
		t.Errorf("until the link's end: %d frames, %+v", len(seqs), whole.result)
	}
	// The link is closed, but the process still runs.
	if seqs := save(t.Context(), attach(t), 0).wait(t); len(seqs) != 0 {
		t.Errorf("after the link's end: %v", seqs)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	unserved(t)
	if _, err := Attach(os.Getpid()); !errors.Is(err, ErrNotCapturable) {
		t.Errorf("after the server's end: %v", err)
	}
	if err := listed(t); err == nil {
		t.Error("a process without a server is listed")
	}
}

// listed returns an error if this process is not in the list.
func listed(t *testing.T) error {
	t.Helper()
	all, err := List()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(s Source) bool { return s.PID == os.Getpid() && s.Process == "worker 1" }) {
		return errors.New("this process is not listed")
	}
	return nil
}

// TestSlowReader never reads: frames are dropped, the link goes on, and closing does not take long.
func TestSlowReader(t *testing.T) {
	l := openLoop(t)
	s := serve(t, l)
	session := attach(t)
	// More than fits the queue, the socket's buffers and the stream's.
	const frames = 14_000
	l.send(1, frames, l.Limits().MaxPayload)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	v := save(t.Context(), session, 0)
	seqs := v.wait(t)
	if len(seqs) == 0 || len(seqs) == frames || !v.result.Ended || !slices.IsSorted(seqs) {
		t.Errorf("%d frames of %d, %+v", len(seqs), frames, v.result)
	}
}

// TestTooManySessions does not affect existing sessions.
func TestTooManySessions(t *testing.T) {
	l := openLoop(t)
	s := serve(t, l)
	for range maxSessions {
		attach(t)
	}
	if _, err := Attach(os.Getpid()); err == nil || !strings.Contains(err.Error(), strconv.Itoa(maxSessions)) {
		t.Errorf("one more: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// asOtherUser runs fn on a thread of another user.
func asOtherUser(t *testing.T, fn func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	const nobody = 65534
	if err := sys.OwnThread(func() error {
		// The raw call changes this thread only, unlike syscall.Setresuid.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			return errno
		}
		fn()
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestOtherUser(t *testing.T) {
	s := serve(t, openLoop(t))
	defer s.Close()
	asOtherUser(t, func() {
		_, err := Attach(os.Getpid())
		if !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), "user root") {
			t.Errorf("capture by another user: %v", err)
		}
	})
	if err := listed(t); err != nil {
		t.Error(err)
	}
}

// TestImpostor lets another process use a process's name.
func TestImpostor(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	s, err := Serve(link.TapOf(openLoop(t).Link), Source{Process: "worker 9", PID: child.Process.Pid}, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := Attach(child.Process.Pid); !errors.Is(err, ErrNotCapturable) || !strings.Contains(err.Error(), "sleep 60") {
		t.Errorf("capture of a process whose name another has taken: %v", err)
	}
	// A name in use cannot be served.
	if _, err := listen(child.Process.Pid); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second server: %v", err)
	}
}

func TestAttachErrors(t *testing.T) {
	for _, pid := range []int{-1, 0, 1 << 30} {
		if _, err := Attach(pid); !errors.Is(err, ErrNoProcess) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
	unserved(t)
	if _, err := Attach(os.Getpid()); !errors.Is(err, ErrNotCapturable) {
		t.Errorf("this process: %v", err)
	}
}

// TestStrangers sends what a session does not, on either side.
func TestStrangers(t *testing.T) {
	l := openLoop(t)
	s := serve(t, l)
	for _, says := range []string{"", "\n", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("x", 2*lineLimit)} {
		conn, err := dial(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, says) // the server may close the connection in the middle
		_ = conn.CloseWrite()
		if got, _ := io.ReadAll(conn); len(got) != 0 {
			t.Errorf("%.20q is answered by %q", says, got)
		}
		conn.Close()
	}
	conn, err := dial(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	_, err = handshake(conn, bufio.NewReader(conn), request{Protocol: 99})
	conn.Close()
	if err == nil || !strings.Contains(err.Error(), "version 1") {
		t.Errorf("another version: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	// Now the test is the stranger, on the process's own socket.
	unserved(t)
	listener, err := listen(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for says, want := range map[string]string{
		"what?\n":                "does not answer as a libra process",
		"":                       "does not answer as a libra process",
		`{"protocol":1}` + "\n!": "malformed record",
	} {
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = io.WriteString(conn, says+strings.Repeat("?", recordLen))
		}()
		session, err := Attach(os.Getpid())
		if err == nil {
			_, err = session.Save(t.Context(), io.Discard, 0)
			session.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a process that says %q: %v, want %q", says, err, want)
		}
	}
}

// TestTorn ends the process in the middle of a record: the file is complete.
func TestTorn(t *testing.T) {
	v := records(t, func(b *bytes.Buffer) {
		_ = writeFrame(b, lossy(t))
		_ = writeFrame(b, lossy(t))
		b.Truncate(b.Len() - 1)
	})
	if seqs := v.wait(t); len(seqs) != 1 || !v.result.Ended || v.result.Dropped != 2 {
		t.Errorf("%v, %+v", seqs, v.result)
	}
}

// The last record counts all lost frames: those that earlier records told of are among them.
func TestLostFramesAreCountedOnce(t *testing.T) {
	v := records(t, func(b *bytes.Buffer) {
		_ = writeFrame(b, lossy(t))
		_ = writeFrame(b, lossy(t))
		_ = writeEnd(b, 7)
	})
	if seqs := v.wait(t); len(seqs) != 2 || v.result.Ended || v.result.Dropped != 7 {
		t.Errorf("%v, %+v, want 7 dropped", seqs, v.result)
	}
}

// lossy returns a frame before which two were lost.
func lossy(t *testing.T) link.TappedFrame {
	return link.TappedFrame{Data: hotFrame(t, 1, 1, 1), Len: 190, Direction: link.Inbound, Lost: 2}
}

// records saves what a process sends that answers one session, and ends.
func records(t *testing.T, write func(b *bytes.Buffer)) *saving {
	t.Helper()
	unserved(t)
	listener, err := listen(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var b bytes.Buffer
	write(&b)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = bufio.NewReader(conn).ReadString('\n')
		_ = writeLine(conn, answer{Protocol: protocol, Source: testSource(1)})
		_, _ = conn.Write(b.Bytes())
	}()
	return save(t.Context(), attach(t), 0)
}

func TestFullOutput(t *testing.T) {
	l := openLoop(t)
	s := serve(t, l)
	defer s.Close()
	session := attach(t)
	l.send(1, 100, 1400)
	if _, err := session.Save(t.Context(), &failing{room: 5000}, 0); !errors.Is(err, errFull) {
		t.Errorf("on a full disk: %v", err)
	}
	session.Close()
}
