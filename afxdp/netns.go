//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespaceID tells network namespaces apart while they exist.
type namespaceID struct{ dev, ino uint64 }

// namespace is the network namespace of a socket's interface. It is remembered
// because a name or an index means another interface elsewhere, and because
// goroutines that recover a socket need not be where it was opened.
type namespace struct {
	namespaceID
	file *os.File
	refs int // sockets; guarded by UMEM.mu
}

const threadNamespacePath = "/proc/thread-self/ns/net"

// threadNamespace names the calling thread's namespace.
func threadNamespace() (namespaceID, error) {
	var st unix.Stat_t
	if err := unix.Stat(threadNamespacePath, &st); err != nil {
		return namespaceID{}, fmt.Errorf("afxdp: network namespace: %w", os.NewSyscallError("stat "+threadNamespacePath, err))
	}
	return namespaceID{st.Dev, st.Ino}, nil
}

// enterNamespace remembers the calling thread's namespace for a socket. Without
// /proc there is nothing to remember it by.
func (u *UMEM) enterNamespace() *namespace {
	id, err := threadNamespace()
	if err != nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	n := u.spaces[id]
	if n == nil {
		file, err := os.Open(threadNamespacePath)
		if err != nil {
			return nil
		}
		n = &namespace{namespaceID: id, file: file}
		if u.spaces == nil {
			u.spaces = make(map[namespaceID]*namespace)
		}
		u.spaces[id] = n
	}
	n.refs++
	return n
}

// leaveNamespace undoes enterNamespace. The caller holds u.mu.
func (u *UMEM) leaveNamespace(n *namespace) error {
	if n == nil || u.spaces[n.namespaceID] != n {
		return nil // the UMEM was closed
	}
	if n.refs--; n.refs > 0 {
		return nil
	}
	delete(u.spaces, n.namespaceID)
	return n.file.Close()
}

// id is the zero value for a namespace that could not be remembered.
func (n *namespace) id() namespaceID {
	if n == nil {
		return namespaceID{}
	}
	return n.namespaceID
}

// do runs fn with the calling thread in the namespace.
func (n *namespace) do(fn func() error) error {
	if n == nil {
		return fn()
	}
	runtime.LockOSThread()
	if here, err := threadNamespace(); err != nil || here == n.namespaceID {
		defer runtime.UnlockOSThread()
		return fn()
	}
	home, err := os.Open(threadNamespacePath)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("afxdp: network namespace: %w", err)
	}
	defer home.Close()
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		err = os.NewSyscallError("setns", err)
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: CAP_SYS_ADMIN, or a call from a thread in that namespace: %w", ErrPermission, err)
		}
		return fmt.Errorf("afxdp: enter the interface's network namespace: %w", err)
	}
	fnErr := fn()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread stays locked, so the runtime ends it with its goroutine
		// rather than let others run in the wrong namespace.
		return errors.Join(fnErr, fmt.Errorf("afxdp: return from the interface's network namespace: %w", os.NewSyscallError("setns", err)))
	}
	runtime.UnlockOSThread()
	return fnErr
}
