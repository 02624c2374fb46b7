// SPDX-License-Identifier: Apache-2.0

package agentproto

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// Wake sends a wake-up without waiting. If the socket is full, or its other end is closed, it does
// nothing.
func Wake(socket int) {
	_ = sys.SendNow(socket, wakeUp[:])
}

var wakeUp = [1]byte{1}

// Dup duplicates the descriptor of a socket, which the caller closes. It outlives the connection.
func Dup(conn *net.UnixConn) (socket int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		socket, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return -1, err
	}
	return socket, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", failed)
}

// SendWelcome sends a message with the descriptor of the shared memory.
func SendWelcome(conn *net.UnixConn, w *Welcome, memory *os.File) error {
	_, _, err := conn.WriteMsgUnix(w.Marshal(), unix.UnixRights(int(memory.Fd())), nil)
	return err
}

// ReceiveAnswer reads the answer to HELLO, and the descriptor that comes with a WELCOME.
func ReceiveAnswer(conn *net.UnixConn) (*Welcome, *os.File, error) {
	var b [RefusedLen + 1]byte
	control := make([]byte, unix.CmsgSpace(4))
	n, c, _, _, err := conn.ReadMsgUnix(b[:], control)
	if err != nil {
		return nil, nil, fmt.Errorf("agent: no answer to HELLO: %w", err)
	}
	files, err := received(control[:c])
	if err != nil {
		return nil, nil, err
	}
	w, err := ParseAnswer(b[:n])
	switch {
	case err == nil && files == nil:
		err = errors.New("agent: WELCOME came without shared memory")
	case err != nil && files != nil:
		err = errors.Join(err, files.Close())
	}
	if err != nil {
		return nil, nil, err
	}
	return w, files, nil
}

// received returns the descriptor of a control message, or nil.
func received(control []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "libra-agent"), nil
}
