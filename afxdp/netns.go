// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// namespace is the network namespace of a socket's interface. It is remembered because a name or an
// index means another interface elsewhere, and because goroutines that recover a socket may run in
// another namespace.
type namespace struct {
	*sys.Namespace
	refs int // sockets; guarded by UMEM.mu
}

// enterNamespace remembers the calling thread's namespace for a socket. Without /proc that is not
// possible.
func (u *UMEM) enterNamespace() *namespace {
	held, err := sys.ThreadNamespace()
	if err != nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	n := u.spaces[held.ID()]
	if n == nil {
		n = &namespace{Namespace: held}
		if u.spaces == nil {
			u.spaces = make(map[sys.NamespaceID]*namespace)
		}
		u.spaces[held.ID()] = n
	} else {
		_ = held.Close() // one descriptor is enough
	}
	n.refs++
	return n
}

// leaveNamespace reverts enterNamespace. The caller holds u.mu.
func (u *UMEM) leaveNamespace(n *namespace) error {
	if n == nil || u.spaces[n.ID()] != n {
		return nil // the UMEM was closed
	}
	if n.refs--; n.refs > 0 {
		return nil
	}
	delete(u.spaces, n.ID())
	return n.Close()
}

// rememberedID is the zero value for a namespace that could not be remembered.
func (n *namespace) rememberedID() sys.NamespaceID {
	if n == nil {
		return sys.NamespaceID{}
	}
	return n.ID()
}

// runInside runs fn with the calling thread in the namespace.
func (n *namespace) runInside(fn func() error) error {
	if n == nil {
		return fn()
	}
	entered := false
	err := n.Do(func() error { entered = true; return fn() })
	if !entered && errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: CAP_SYS_ADMIN, or a call from a thread in that namespace: %w", ErrPermission, err)
	}
	if !entered {
		return fmt.Errorf("afxdp: the interface's namespace: %w", err)
	}
	return err
}
