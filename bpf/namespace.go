//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrNamespace says that an interface is in another network namespace than
// those that the aggregator has already.
var ErrNamespace = errors.New("an aggregator's interfaces must be in one network namespace")

// namespace is the network namespace of an aggregator's interfaces.
type namespace struct {
	file *os.File // nil before the first interface
}

// settle makes the caller's namespace the aggregator's, or checks that it is.
func (n *namespace) settle() error {
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if n.file == nil {
		n.file = here
		return nil
	}
	same, err := sameFile(n.file, here)
	if err == nil && !same {
		err = ErrNamespace
	}
	return errors.Join(err, here.Close())
}

func sameFile(a, b *os.File) (bool, error) {
	x, err := a.Stat()
	if err != nil {
		return false, fmt.Errorf("network namespace: %w", err)
	}
	y, err := b.Stat()
	if err != nil {
		return false, fmt.Errorf("network namespace: %w", err)
	}
	return os.SameFile(x, y), nil
}

// do runs fn in the namespace. It needs CAP_SYS_ADMIN if the caller is in
// another one.
func (n *namespace) do(fn func() error) error {
	runtime.LockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("network namespace: %w", err)
	}
	defer here.Close()
	same := true
	if n.file != nil {
		same, err = sameFile(n.file, here)
	}
	if err != nil || same {
		defer runtime.UnlockOSThread()
		if err != nil {
			return err
		}
		return fn()
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace of the interfaces: %w", os.NewSyscallError("setns", err))
	}
	err = fn()
	if back := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, so that the runtime ends it with its
		// goroutine rather than let others run in the wrong namespace.
		return errors.Join(err, fmt.Errorf("return from the network namespace of the interfaces: %w", os.NewSyscallError("setns", back)))
	}
	runtime.UnlockOSThread()
	return err
}

func (n *namespace) close() error {
	if n.file == nil {
		return nil
	}
	return n.file.Close()
}
