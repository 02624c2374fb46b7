// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// ownThread is the folder of the calling thread in /proc.
const ownThread = "/proc/thread-self"

// NamespaceID identifies a network namespace while it exists.
type NamespaceID struct{ dev, ino uint64 }

// Inode returns the number that /proc shows, as in net:[4026531840].
func (id NamespaceID) Inode() uint64 { return id.ino }

// Namespace is a network namespace, held by an open descriptor. Its methods may
// be called from any goroutine.
type Namespace struct {
	file *os.File
	id   NamespaceID
}

// ThreadNamespace opens the network namespace of the calling thread.
func ThreadNamespace() (*Namespace, error) { return OpenNamespace(ownThread) }

// ThreadNamespaceID identifies the network namespace of the calling thread.
func ThreadNamespaceID() (NamespaceID, error) {
	path := filepath.Join(ownThread, "ns", "net")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return NamespaceID{}, fmt.Errorf("network namespace: %w", &os.PathError{Op: "stat", Path: path, Err: err})
	}
	return NamespaceID{st.Dev, st.Ino}, nil
}

// OpenNamespace opens the network namespace of the process, or thread, to which
// a folder of /proc belongs.
func OpenNamespace(procDir string) (*Namespace, error) {
	f, err := os.Open(filepath.Join(procDir, "ns", "net"))
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(fmt.Errorf("network namespace: %w", os.NewSyscallError("fstat", err)), f.Close())
	}
	return &Namespace{f, NamespaceID{st.Dev, st.Ino}}, nil
}

// NewNamespace creates a network namespace without a name: it ends with the last descriptor, socket
// and process in it. It requires CAP_SYS_ADMIN.
func NewNamespace() (n *Namespace, err error) {
	err = andReturn(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", os.NewSyscallError("unshare", err))
		}
		n, err = ThreadNamespace()
		return err
	})
	if err != nil && n != nil {
		err, n = errors.Join(err, n.Close()), nil
	}
	return n, err
}

// ID identifies the namespace.
func (n *Namespace) ID() NamespaceID { return n.id }

// FD returns the namespace's descriptor, which belongs to the Namespace.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Close closes the descriptor.
func (n *Namespace) Close() error { return n.file.Close() }

// Do runs fn with the calling goroutine locked to its thread and the thread in the namespace, and
// returns fn's error. Sockets that fn opens stay in the namespace; goroutines that it starts do not
// run there. Do requires CAP_SYS_ADMIN unless the thread is already in the namespace. If it fails
// to enter, it does not call fn.
//
// The thread returns to its own namespace however fn ends. If it cannot (fn may have given up the
// capability), Do returns an error and the goroutine stays locked: the runtime ends the thread with
// the goroutine, and no other goroutine runs in the wrong namespace.
func (n *Namespace) Do(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // andReturn has its own lock
	here, err := ThreadNamespaceID()
	if err != nil {
		return err
	}
	if here == n.id {
		return fn()
	}
	return andReturn(func() error {
		if err := n.setThread(); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return fn()
	})
}

// Run runs fn on its own thread in the namespace, and returns fn's error. Unlike Do, it requires no
// privilege over the caller's namespace.
func (n *Namespace) Run(fn func() error) error {
	return OwnThread(func() error {
		here, err := ThreadNamespaceID()
		if err == nil && here != n.id {
			err = n.setThread()
		}
		if err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return fn()
	})
}

func (n *Namespace) setThread() error {
	return os.NewSyscallError("setns", unix.Setns(n.FD(), unix.CLONE_NEWNET))
}

// andReturn runs fn on a thread whose network namespace fn may change.
func andReturn(fn func() error) (err error) {
	runtime.LockOSThread()
	home, err := ThreadNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		back := errors.Join(home.setThread(), home.Close())
		if back == nil {
			runtime.UnlockOSThread()
			return
		}
		err = errors.Join(err, fmt.Errorf("return from the network namespace: %w", back))
	}()
	return fn()
}
