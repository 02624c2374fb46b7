package testbed

import (
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace, held by its descriptor.
type namespace struct {
	fd netns.NsHandle
}

// newNamespace makes an anonymous network namespace. The calling goroutine
// comes back in the namespace that it was in.
func newNamespace() (namespace, error) {
	var made namespace
	err := inOtherNamespace(func() error {
		fd, err := netns.New()
		if err != nil {
			return fmt.Errorf("testbed: make a network namespace: %w", err)
		}
		made.fd = fd
		return nil
	})
	return made, err
}

// do runs fn on a thread that is in the namespace. A descriptor below zero is
// refused by the kernel.
func (ns namespace) do(fn func() error) error {
	return inOtherNamespace(func() error {
		if err := netns.Set(ns.fd); err != nil {
			return fmt.Errorf("testbed: enter network namespace: %w", err)
		}
		return fn()
	})
}

// inOtherNamespace runs fn on the caller's goroutine and locked thread, and
// takes the thread back to its network namespace afterwards, whatever fn did
// and however it ended.
func inOtherNamespace(fn func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("testbed: open the current network namespace: %w", err)
	}
	defer func() {
		err := netns.Set(home)
		_ = home.Close()
		if err != nil {
			// Only possible if fn gave up CAP_SYS_ADMIN. To go on would mean to
			// send the caller's later traffic into the wrong network.
			panic(fmt.Sprintf("testbed: cannot leave the network namespace: %v", err))
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}

// checkCapabilities fails with a CapabilityError where a bed cannot be built.
func checkCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("testbed: %w", os.NewSyscallError("capget", err))
	}
	var missing []string
	for _, c := range []struct {
		number int
		name   string
	}{
		{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"},
		{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
	} {
		if data[c.number/32].Effective&(1<<(c.number%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	if missing != nil {
		return &CapabilityError{Missing: missing}
	}
	return nil
}
