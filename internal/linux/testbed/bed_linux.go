// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/sys"
)

// Bed is a network of namespaces. Its methods and those of its nodes may be
// called from several goroutines.
type Bed struct {
	cfg      Config
	switches []*Node
	hosts    []*Node
	thread   *proc.Thread // starts children

	mu     sync.RWMutex // guards the nodes' descriptors against Close
	closed bool

	childrenMu sync.Mutex
	children   []*os.Process
}

// New builds a bed and waits until frames pass. It fails with a CapabilityError if privileges are
// missing and with an error that wraps ErrConfig if cfg cannot be built, and then leaves nothing
// behind. ctx limits only the building.
func New(ctx context.Context, cfg Config) (*Bed, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkCapabilities(); err != nil {
		return nil, err
	}
	b := &Bed{cfg: cfg, thread: proc.NewThread()}
	if err := b.buildAll(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// checkCapabilities returns a CapabilityError if a bed cannot be built.
func checkCapabilities() error {
	missing, err := sys.MissingCapabilities(sys.CapSysAdmin, sys.CapNetAdmin)
	if err != nil {
		return fmt.Errorf("testbed: %w", err)
	}
	if missing != nil {
		return &CapabilityError{Missing: missing}
	}
	return nil
}

// Switch returns the node of the first bridge.
func (b *Bed) Switch() *Node { return b.switches[0] }

// Switches returns all switches by index. The slice belongs to the bed.
func (b *Bed) Switches() []*Node { return b.switches }

// Hosts returns the hosts in order. The slice belongs to the bed.
func (b *Bed) Hosts() []*Node { return b.hosts }

// Host returns host i, from 0 on.
func (b *Bed) Host(i int) *Node { return b.hosts[i] }

// nodes returns the switches and the hosts created so far.
func (b *Bed) nodes() []*Node { return slices.Concat(b.switches, b.hosts) }

// Close kills the children of [Node.Start] and waits for their end (the caller still has to call
// their Wait), removes the interfaces and closes the namespaces. The kernel removes the namespaces
// later, unless the caller still has sockets or processes in them. Closing a second time does
// nothing.
func (b *Bed) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	b.thread.Close()
	b.endChildren()

	var errs []error
	for _, sw := range b.switches {
		errs = append(errs, removeLinks(sw))
	}
	for _, n := range b.nodes() {
		errs = append(errs, n.ns.Close())
	}
	return errors.Join(errs...)
}

// endChildren kills running children and waits for their end. Only a process that has ended no
// longer holds its namespace.
func (b *Bed) endChildren() {
	b.childrenMu.Lock()
	defer b.childrenMu.Unlock()
	for _, p := range b.children {
		_ = p.Kill() // an error means that it has ended
		_ = p.WithHandle(func(pidfd uintptr) {
			fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
			for {
				if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
					return
				}
			}
		})
	}
	b.children = nil
}

// removeLinks deletes a switch's interfaces. Deleting a veth end deletes its peer. Otherwise they
// would exist until the kernel has removed the namespaces.
func removeLinks(sw *Node) error {
	handle, err := sw.ns.handle()
	if err != nil {
		return err
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil {
		return fmt.Errorf("testbed: list interfaces of %s: %w", sw.Name, err)
	}
	var errs []error
	for _, link := range links {
		if kind := link.Type(); kind != "veth" && kind != "bridge" {
			continue
		}
		// A cable between two of the interfaces is deleted with the first.
		if err := handle.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("testbed: delete interface %s: %w", link.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// NamespacePath returns a path of the node's network namespace for programs like nsenter, until the
// bed is closed.
func (n *Node) NamespacePath() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.ns.FD()) }

// Do runs fn with the calling goroutine locked to a thread that is in the node's namespace, and
// returns fn's error. Sockets and netlink handles that fn opens stay in that namespace. Goroutines
// that fn starts do NOT inherit it: the net package's dialling with a timeout or to a name may
// start some, whereas its listening and dialling of one IP address does not.
func (n *Node) Do(fn func() error) error {
	// The lock keeps Close from closing, and the kernel from reusing, the descriptor until the
	// thread is inside; after that, fn may take any time.
	n.bed.mu.RLock()
	unlock := sync.OnceFunc(n.bed.mu.RUnlock)
	defer unlock()
	if n.bed.closed {
		return fmt.Errorf("%w: %s", ErrClosed, n.Name)
	}
	return n.ns.Do(func() error {
		unlock()
		return fn()
	})
}

// Start starts cmd's process in the node's namespace. The kernel kills the process when this one
// ends for any reason (see [proc.DieWithParent]), and Close kills it, too. The caller has to wait
// for it.
func (n *Node) Start(cmd *exec.Cmd) error {
	proc.DieWithParent(cmd)
	err := n.bed.thread.Run(func() error {
		return n.Do(func() error {
			n.bed.childrenMu.Lock()
			defer n.bed.childrenMu.Unlock()
			if err := cmd.Start(); err != nil {
				return err
			}
			n.bed.children = append(n.bed.children, cmd.Process)
			return nil
		})
	})
	if errors.Is(err, proc.ErrThreadClosed) {
		err = ErrClosed
	}
	if err != nil {
		return fmt.Errorf("testbed: start a process in %s: %w", n.Name, err)
	}
	return nil
}
