// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// ErrNamespace means that an interface is in a different network namespace from the aggregator's
// other interfaces.
var ErrNamespace = errors.New("an aggregator's interfaces must be in one network namespace")

// namespace is the network namespace of an aggregator's interfaces, nil before
// the first.
type namespace struct{ *sys.Namespace }

// settleIn makes the caller's namespace the aggregator's, or checks that it is.
func (n *namespace) settleIn() error {
	here, err := sys.ThreadNamespace()
	if err != nil {
		return err
	}
	if n.Namespace == nil {
		n.Namespace = here
		return nil
	}
	if here.ID() != n.ID() {
		err = ErrNamespace
	}
	return errors.Join(err, here.Close())
}

// runInside runs fn in the namespace. It needs CAP_SYS_ADMIN if the caller is in a different one.
func (n *namespace) runInside(fn func() error) error {
	if n.Namespace == nil {
		return fn()
	}
	return n.Do(fn)
}

func (n *namespace) closeNamespace() error {
	if n.Namespace == nil {
		return nil
	}
	return n.Close()
}
