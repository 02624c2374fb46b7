// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/atomicfile"
	"github.com/libra-ina/libra/internal/filelock"
	"github.com/libra-ina/libra/internal/regular"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
)

// Machine is what a process needs of the machine that it runs on. A field that is nil
// stands for the real thing; a simulation has its own.
type Machine struct {
	// Listen opens the socket of a control service.
	Listen func(ctx context.Context, addr netip.AddrPort) (net.Listener, error)
	// Client and Server are further settings of control connections.
	Client []grpc.DialOption
	Server []grpc.ServerOption
	// Link opens what carries the frames of an address. Captures do not see them.
	Link func(local netip.AddrPort) (link.Link, error)
	// Disk has the checkpoint.
	Disk Disk
	// Plane and Store stand before the data plane of a switch, and are told of the store of
	// a server, so that a simulation can count what they hold.
	Plane func(aggregator.Plane) aggregator.Plane
	Store func(*ps.Store)
	// Flushed is told that all that a worker has sent is acknowledged.
	Flushed func()
	// Turn is called by a goroutine that several things may have woken at once.
	Turn func(what string)
	// Random is what the control services draw from.
	Random io.Reader
}

// Disk is where a checkpoint is.
type Disk interface {
	atomicfile.Disk
	Stat(path string) (fs.FileInfo, error)
	Open(path string) (io.ReadCloser, error)
	// Lock is [filelock.Lock].
	Lock(path, suffix string) (unlock func() error, err error)
}

// osDisk is the machine's own.
type osDisk struct{ atomicfile.OS }

func (osDisk) Stat(path string) (fs.FileInfo, error)   { return os.Stat(path) }
func (osDisk) Open(path string) (io.ReadCloser, error) { return regular.Open(path) }
func (osDisk) Lock(path, suffix string) (unlock func() error, err error) {
	return filelock.Lock(path, suffix)
}

func (m *Machine) disk() Disk {
	if m.Disk != nil {
		return m.Disk
	}
	return osDisk{}
}

func (m *Machine) turn(what string) {
	if m.Turn != nil {
		m.Turn(what)
	}
}

// listen opens the TCP socket of a control service.
func (m *Machine) listen(ctx context.Context, field string, addr netip.AddrPort) (l net.Listener, err error) {
	if m.Listen != nil {
		l, err = m.Listen(ctx, addr)
	} else {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", addr.String())
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen for control connections: %w (%s in the cluster configuration)", err, field)
	}
	return l, nil
}
