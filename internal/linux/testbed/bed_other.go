// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package testbed

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
)

// ErrUnsupported is returned by every function except on Linux.
var ErrUnsupported = fmt.Errorf("testbed: network namespaces exist on Linux only; use the udp backend: %w",
	errors.ErrUnsupported)

// Namespace is a network namespace, which only Linux has.
type Namespace struct{}

// Bed is a network of namespaces, which only Linux has.
type Bed struct{}

// New returns ErrUnsupported.
func New(context.Context, Config) (*Bed, error) { return nil, ErrUnsupported }

// Switch returns nil: there is no Bed here.
func (*Bed) Switch() *Node { return nil }

// Switches returns nothing.
func (*Bed) Switches() []*Node { return nil }

// Hosts returns nothing.
func (*Bed) Hosts() []*Node { return nil }

// Host returns nil.
func (*Bed) Host(int) *Node { return nil }

// Close does nothing.
func (*Bed) Close() error { return nil }

// SimpleSwitch returns nil: there is no Bed here.
func SimpleSwitch(string, string, []string) *exec.Cmd { return nil }

// Do returns ErrUnsupported.
func (*Node) Do(func() error) error { return ErrUnsupported }

// Start returns ErrUnsupported.
func (*Node) Start(*exec.Cmd) error { return ErrUnsupported }

// LimitRate returns ErrUnsupported.
func (*Node) LimitRate(float64) error { return ErrUnsupported }
