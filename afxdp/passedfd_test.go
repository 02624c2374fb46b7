// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// childVariable makes the test binary run as the unprivileged process of
// TestPassedSocket: its value is the number of packets to echo.
const childVariable = "AFXDP_TEST_CHILD"

// childMapVariable means that descriptor 4 is the program's map, in which it must enter the socket.
const childMapVariable = "AFXDP_TEST_CHILD_MAP"

// child opens the socket in descriptor 3 and sends back n packets.
func child(n int) error {
	if os.Geteuid() == 0 {
		return errors.New("child has privileges")
	}
	u, err := NewUMEM(UMEMConfig{Frames: 256, HugePages: HugePagesOff})
	if err != nil {
		return err
	}
	pool, err := u.NewPool(0)
	if err != nil {
		return err
	}
	if _, err := Open(pool, Config{Interface: "b"}); !errors.Is(err, ErrPermission) {
		return fmt.Errorf("socket without a passed descriptor: %w, want ErrPermission", err)
	}
	var sockets *ebpf.Map
	if os.Getenv(childMapVariable) != "" {
		if sockets, err = ebpf.NewMapFromFD(4); err != nil {
			return err
		}
		defer sockets.Close()
	}
	s, err := Open(pool, Config{Interface: "b", File: os.NewFile(3, "xsk"), XSKMap: sockets})
	if err != nil {
		return err
	}
	descs, frames := make([]Desc, 16), make([]Frame, 16)
	for echoed := 0; echoed < n; {
		if ev, err := s.Poll(EventRx, 5*time.Second); ev != EventRx || err != nil {
			return fmt.Errorf("events %b: %w", ev, err)
		}
		k, err := s.Receive(descs)
		if err != nil {
			return err
		}
		if sent, err := s.Send(descs[:k]); sent != k || err != nil {
			return fmt.Errorf("sent %d of %d: %w", sent, k, err)
		}
		if err := s.Kick(); err != nil {
			return err
		}
		echoed += k
		if k, err = s.Completed(frames); err != nil {
			return err
		}
		if _, err := s.Fill(frames[:k]); err != nil {
			return err
		}
	}
	if err := s.Reopen(nil); !errors.Is(err, ErrPassedFD) { //nolint:staticcheck // refused before the context is looked at
		return fmt.Errorf("Reopen: %w, want ErrPassedFD", err)
	}
	return errors.Join(s.Close(), u.Close())
}

// A privileged process attaches and creates the socket; one without any privilege maps the rings
// and moves the packets, and enters the socket in the map if it also got the map.
func TestPassedSocket(t *testing.T) {
	for name, passMap := range map[string]bool{"socket": false, "socket and map": true} {
		t.Run(name, func(t *testing.T) { testPassedSocket(t, passMap) })
	}
}

func testPassedSocket(t *testing.T, passMap bool) {
	const nobody, packets = 65534, 50
	ns := newNet(t, testbed.VethConfig{})
	prog := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	back := attach(t, ns, AttachConfig{Interface: "a", Match: MatchAll()})
	a := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", XSKMap: back.XSKMap()})

	var file *os.File
	err := ns.Do(func() (err error) {
		file, err = NewSocketFD("b")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.CommandContext(t.Context(), readableBinary(t))
	cmd.Env = append(os.Environ(), fmt.Sprint(childVariable, "=", packets))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{file}
	if passMap {
		fd, err := unix.Dup(prog.XSKMap().FD())
		if err != nil {
			t.Fatal(err)
		}
		sockets := os.NewFile(uintptr(fd), "xskmap")
		defer sockets.Close()
		cmd.Env, cmd.ExtraFiles = append(cmd.Env, childMapVariable+"=1"), append(cmd.ExtraFiles, sockets)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait(); close(exited) }()
	t.Cleanup(func() {
		for range exited { // a child that the end of the context kills
		}
	})

	if !passMap { // since Linux 7 the map accepts the socket only after the child's Open
		enter := func() error { return prog.XSKMap().Put(uint32(0), uint32(file.Fd())) }
		err := enter()
		for deadline := time.Now().Add(eventLimit); errors.Is(err, unix.ENOBUFS) && time.Now().Before(deadline); err = enter() {
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	// The child needs a moment to bind, so the first packets may be lost.
	number := uint64(0)
	var got []uint64
	for deadline := time.Now().Add(eventLimit); len(got) < packets; number++ {
		if time.Now().After(deadline) {
			t.Fatal("no echo")
		}
		transmit(t, a, newPackets(t, a, number, 1, 100))
		ev, err := a.Poll(EventRx, 50*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if ev&EventRx != 0 {
			got = append(got, receive(t, a, 1)...)
		}
	}
	if err := <-exited; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(upTo(number-packets, packets), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// readableBinary copies the test binary to a place where all users may execute it.
func readableBinary(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "afxdp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	path := filepath.Join(dir, "child")
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// A passed socket is confined to its interface.
func TestPassedSocketIsConfined(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	var file *os.File
	err := ns.Do(func() (err error) {
		file, err = NewSocketFD("b")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_, err = tryOpen(ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", File: file})
	wantErr(t, err, ErrNoQueue)
}

// A passed socket that could not be bound can be tried again.
func TestPassedSocketIsTriedAgain(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	prog := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	a := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	holder := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b"})
	var file *os.File
	err := ns.Do(func() (err error) {
		file, err = NewSocketFD("b")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 256}), 0)
	cfg := Config{Interface: "b", XSKMap: prog.XSKMap(), File: file, BindTimeout: 20 * time.Millisecond}
	for range 2 {
		_, err = tryOpen(ns, pool, cfg)
		wantErr(t, err, ErrQueueBusy)
		if pool.Available() != 256 {
			t.Fatalf("refused Open kept %d frames", 256-pool.Available())
		}
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.BindTimeout = eventLimit
	other := cfg
	other.RxRing = 64
	_, err = tryOpen(ns, pool, other)
	wantErr(t, err, ErrConfig)
	const words = "fill, completion, RX and TX rings of [2048 2048 2048 2048] entries, and they cannot be changed to [2048 2048 64 2048]"
	if !strings.Contains(err.Error(), words) {
		t.Errorf("error %q, want %q", err, words)
	}
	s := open(t, ns, pool, cfg)
	transmit(t, a, newPackets(t, a, 0, 200, 60))
	if diff := cmp.Diff(upTo(0, 100), receive(t, s, 100)[:100]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// It is open now, and not one that could not be bound.
	_, err = tryOpen(ns, pool, cfg)
	wantErr(t, err, ErrPassedFD)
	// While the descriptor is open, the kernel has the socket and its frames.
	s.cfg.BindTimeout = 20 * time.Millisecond
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = s.Reclaim()
	wantErr(t, err, ErrStillLent)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	s.cfg.BindTimeout = eventLimit
	if _, err := s.Reclaim(); err != nil || pool.Available() != 256 {
		t.Errorf("%v, %d of 256 frames are free", err, pool.Available())
	}
}

func TestPassedSocketMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	create := func() error {
		f, err := NewSocketFD("a")
		if err == nil {
			err = f.Close()
		}
		return err
	}
	refused(t, ns, "socket", unix.EDOM, "socket AF_XDP: ", create, socketOf(unix.AF_XDP, unix.EDOM))
	before := refuse.CountDescriptors(t)
	refused(t, ns, "restrict", unix.EDOM, "afxdp: restrict socket to a: ", create, setsockopt(unix.SOL_SOCKET, unix.SO_BINDTODEVICE, unix.EDOM))
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}

	// Without a name the socket would not be confined, and the kernel truncates a long one.
	for _, name := range []string{"", "nosuch", "abcdefghijklmnopq"} {
		f, err := NewSocketFD(name)
		if err == nil {
			f.Close()
		}
		wantErr(t, err, ErrInterfaceGone)
	}

	pool := newPool(t, newUMEM(t, UMEMConfig{}), 0)
	for name, c := range map[string]struct {
		calls []refuse.Call
		want  error
		words string
	}{
		"domain":      {[]refuse.Call{{Number: unix.SYS_GETSOCKOPT, Args: map[int]uint32{1: unix.SOL_SOCKET, 2: unix.SO_DOMAIN}, Err: unix.EDOM}}, ErrConfig, "Config.File is no AF_XDP socket"},
		"duplicate":   {[]refuse.Call{{Number: unix.SYS_FCNTL, Args: map[int]uint32{1: unix.F_DUPFD_CLOEXEC}, Err: unix.EDOM}}, unix.EDOM, "afxdp: passed socket: fcntl: "},
		"inode":       {[]refuse.Call{{Number: unix.SYS_FSTAT, Err: unix.EDOM}}, unix.EDOM, "fstat: "},
		"used before": {[]refuse.Call{setsockopt(unix.SOL_XDP, unix.XDP_RX_RING, unix.EBUSY)}, ErrPassedFD, "it was used before, pass a fresh one: XDP_RX_RING: "},
		"bound":       {[]refuse.Call{setsockopt(unix.SOL_XDP, unix.XDP_TX_RING, unix.EINVAL)}, ErrPassedFD, "it was used before, pass a fresh one: XDP_TX_RING: "},
		"ring":        {[]refuse.Call{setsockopt(unix.SOL_XDP, unix.XDP_TX_RING, unix.EDOM)}, unix.EDOM, "afxdp: XDP_TX_RING of 2048 entries: "},
	} {
		refused(t, ns, name, c.want, c.words, func() error {
			f, err := NewSocketFD("a")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = Open(pool, Config{Interface: "a", File: f})
			return err
		}, c.calls...)
	}
	var f *os.File
	if err := ns.Do(func() (err error) { f, err = NewSocketFD("a"); return err }); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := open(t, ns, pool, Config{Interface: "a", File: f})
	u := newUMEM(t, UMEMConfig{})
	_, err := tryOpen(ns, newPool(t, u, 0), Config{Interface: "a", File: f})
	wantErr(t, err, ErrPassedFD)
	if err := s.Reopen(t.Context()); !errors.Is(err, ErrPassedFD) || !strings.Contains(err.Error(), "passes anew") {
		t.Errorf("Reopen: %v, want ErrPassedFD", err)
	}
}
