// SPDX-License-Identifier: Apache-2.0

package agentproto

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// shared is the memory of a session on both sides.
func shared(t *testing.T, l Layout) (agent, client *Memory, file *os.File) {
	t.Helper()
	agent, file, err := NewMemory(l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(agent.Close(), file.Close()); err != nil {
			t.Error(err)
		}
	})
	if client, err = OpenMemory(int(file.Fd()), l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return agent, client, file
}

func TestLayout(t *testing.T) {
	for _, want := range []Layout{
		{SQ: 4096, CQ: 8192, Buffers: 12288, BufferBytes: 4096, Total: 16384, Entries: 8},
		{SQ: 4096, CQ: 12288, Buffers: 20480, BufferBytes: 8192, Total: 28672, Entries: 128},
		{SQ: 4096, CQ: 8192, Buffers: 12288, Total: 12288, Entries: 64},
	} {
		for _, bytes := range []uint64{want.BufferBytes, max(want.BufferBytes, 4096) - 4095} {
			if want.BufferBytes == 0 && bytes != 0 {
				continue
			}
			if got := LayoutOf(want.Entries, bytes); got != want {
				t.Errorf("%d entries and %d bytes: %+v, want %+v", want.Entries, bytes, got, want)
			}
		}
	}
}

// Each side reads what the other has written, each ring wraps at its end, and parts do not overlap.
func TestMemoryIsShared(t *testing.T) {
	agent, client, file := shared(t, LayoutOf(8, 4096))
	for i := range uint32(8) {
		client.Entry(i)[0], client.Entry(i)[63] = byte(i+1), byte(i+1)
		agent.Completion(i)[0], agent.Completion(i)[63] = byte(i+101), byte(i+101)
	}
	keys, floats := client.Keys(0, 2), client.Floats(16, 4)
	copy(keys, []uint64{7, 1 << 63})
	copy(floats, []float32{1, 2, 3, 4})
	for i := range uint32(8) {
		if e, c := agent.Entry(i+8), client.Completion(i-8); e[0] != byte(i+1) || e[63] != byte(i+1) || c[0] != byte(i+101) || c[63] != byte(i+101) {
			t.Errorf("place %d: %v and %v", i, e, c)
		}
	}
	if words := agent.Words(0, 4); words[0] != 7 || words[1] != 1<<63 || words[2] != 0x40000000_3f800000 || words[3] != 0x40800000_40400000 {
		t.Errorf("the buffer area has %x", words)
	}
	if last := client.Floats(4092, 1); len(last) != 1 || cap(last) != 1 || cap(keys) != 2 {
		t.Error("a part of the area reaches further than it should")
	}
	for name, beyond := range map[string]func(){
		"keys": func() { client.Keys(4088, 2) }, "floats": func() { client.Floats(4096, 1) },
		"a place far beyond": func() { client.Keys(1<<40, 0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s beyond the area are given out", name)
				}
			}()
			beyond()
		}()
	}
	for _, size := range []int64{4096, 1 << 20} {
		if err := file.Truncate(size); !errors.Is(err, unix.EPERM) {
			t.Errorf("a client can make it %d bytes large: %v", size, err)
		}
	}
	if err := client.Ended(); err != nil {
		t.Error(err)
	}
	agent.End(BadIndex, strings.Repeat("x", 600))
	var ended *EndedError
	if err := client.Ended(); !errors.As(err, &ended) || !errors.Is(err, BadIndex) || ended.Text != strings.Repeat("x", 511) || err.Error() != "agent: the session has ended: "+ended.Text {
		t.Errorf("the session ended with %v", err)
	}
}

// A client refuses memory that differs from the announced one.
func TestOpenMemoryChecks(t *testing.T) {
	l := LayoutOf(8, 4096)
	agent, _, file := shared(t, l)
	other := l
	other.CQ += 64
	larger := LayoutOf(8, 8192)
	agent.magic++
	for want, c := range map[string]struct {
		fd     int
		layout Layout
	}{
		"that this program does not know":                    {int(file.Fd()), other},
		"shared memory of 16384 bytes, 20480 were announced": {int(file.Fd()), larger},
		"does not begin as it should":                        {int(file.Fd()), l},
		"fstat: bad file descriptor":                         {-1, l},
	} {
		if m, err := OpenMemory(c.fd, c.layout); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, %v, want %q", m, err, want)
		}
	}
}

// The kernel refuses memory: the error names the call, and no descriptor is left.
func TestMemoryRefused(t *testing.T) {
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Error(err)
		}
		return len(names)
	}
	for want, call := range map[string]refuse.Call{
		"memfd_create: ": {Number: unix.SYS_MEMFD_CREATE},
		"shared memory of 16384 bytes: truncate ": {Number: unix.SYS_FTRUNCATE},
		"fcntl F_ADD_SEALS: ":                     {Number: unix.SYS_FCNTL, Args: map[int]uint32{1: unix.F_ADD_SEALS}},
		"shared memory of 16384 bytes: mmap: ":    {Number: unix.SYS_MMAP, Args: map[int]uint32{3: unix.MAP_SHARED}},
	} {
		call.Err = unix.EPERM
		var before, after int
		err := refuse.Run(func() error {
			before = open()
			m, file, err := NewMemory(LayoutOf(8, 1))
			if err == nil {
				return errors.Join(fmt.Errorf("%s: there is memory", want), m.Close(), file.Close())
			}
			after = open()
			return err
		}, call)
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), want) || before != after {
			t.Errorf("%v, want %q; %d descriptors before, %d after", err, want, before, after)
		}
	}
}

// pair is a connection with both ends in the test.
func pair(t *testing.T) (agent, client *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		conn, err := net.FileConn(file)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		ends[i] = conn.(*net.UnixConn)
		t.Cleanup(func() { _ = conn.Close() })
	}
	return ends[0], ends[1]
}

// A WELCOME comes with memory, a refusal without.
func TestReceiveAnswer(t *testing.T) {
	_, _, file := shared(t, LayoutOf(8, 1))
	agent, client := pair(t)
	sent := &Welcome{Version: Version, Job: 5, Layout: LayoutOf(8, 1)}
	if err := SendWelcome(agent, sent, file); err != nil {
		t.Fatal(err)
	}
	got, memory, err := ReceiveAnswer(client)
	if err != nil || *got != *sent {
		t.Fatalf("%+v, %v", got, err)
	}
	if m, err := OpenMemory(int(memory.Fd()), got.Layout); err != nil || m.Close() != nil || memory.Close() != nil {
		t.Error(err)
	}
	refused := &RefusedError{Code: NoJob, Text: "no"}
	for name, c := range map[string]struct {
		message []byte
		rights  []byte
		want    string
	}{
		"a welcome alone":          {sent.Marshal(), nil, "WELCOME came without shared memory"},
		"a refusal":                {refused.Marshal(), nil, "agent: refused: no"},
		"a refusal with memory":    {refused.Marshal(), unix.UnixRights(int(file.Fd())), "agent: refused: no"},
		"more than a refusal has":  {append(refused.Marshal(), 0), nil, "513 bytes fits no version"},
		"what is no answer at all": {[]byte("HTTP/1.1 400"), nil, "does a different program listen there?"},
	} {
		before, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := agent.WriteMsgUnix(c.message, c.rights, nil); err != nil {
			t.Fatal(err)
		}
		got, memory, err := ReceiveAnswer(client)
		if got != nil || memory != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, %v, want %q", name, got, memory, err, c.want)
		}
		if after, err := os.ReadDir("/proc/self/fd"); err != nil || len(after) != len(before) {
			t.Errorf("%s: %d descriptors before, %d after, %v", name, len(before), len(after), err)
		}
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReceiveAnswer(client); !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), "no answer to HELLO") {
		t.Errorf("a closed connection: %v", err)
	}
}

// A wake-up is one byte, does not wait for room, and does nothing on a closed connection.
func TestWake(t *testing.T) {
	agent, client := pair(t)
	who, err := sys.Credentials(client)
	if err != nil || int(who.Uid) != os.Getuid() || int(who.Gid) != os.Getgid() || int(who.Pid) != os.Getpid() {
		t.Errorf("the other end is %+v, %v", who, err)
	}
	socket, err := Dup(agent)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(socket) }()
	Wake(socket)
	b := make([]byte, 8)
	if n, err := client.Read(b); n != 1 || err != nil {
		t.Errorf("a wake-up of %d bytes, %v", n, err)
	}
	for range 100_000 { // far more than the socket holds
		Wake(socket)
	}
	_ = agent.Close() // the duplicate stays open
	Wake(socket)
	_ = client.Close()
	Wake(socket)
	if _, err := sys.Credentials(agent); err == nil {
		t.Error("a closed connection has another end")
	}
}
