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
	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
)

// Machine provides the resources of the process's machine. A nil field stands for the real one; a
// simulation sets its own.
type Machine struct {
	// Listen opens the socket of a control service.
	Listen func(ctx context.Context, addr netip.AddrPort) (net.Listener, error)
	// Client and Server are additional options of control connections.
	Client []grpc.DialOption
	Server []grpc.ServerOption
	// Link opens the link for the frames of an address. Captures do not see its frames.
	Link func(local netip.AddrPort) (link.Link, error)
	// Gate is passed before calls of the endpoint on this link; see transport.WorkerConfig.
	Gate func()
	// Disk stores the checkpoint.
	Disk Disk
	// Plane and Store wrap the data plane of a switch and receive the store of a server, so that a
	// simulation can count their contents.
	Plane func(aggregator.Plane) aggregator.Plane
	Store func(*ps.Store)
	// Fenced, if not nil, is called by the server's loop when the job goes on without its aggregator.
	Fenced func()
	// Rewind, if not nil, is called by the server's loop in the place of drop, which drops the open
	// step, and calls that.
	Rewind func(drop func())
	// Began, if not nil, is called by the server's loop when the job goes on at an aggregator again.
	Began func(aggregator int)
	// Settled, if not nil, is called when a worker or agent has settled, or has joined a job that goes
	// on without its aggregator: from then on nothing that it sends is at an aggregator alone.
	Settled func()
	// Pushes is called before a worker pushes gradients.
	Pushes func(keys []uint64, grads []float32)
	// Flushed is called when everything that a worker has sent is acknowledged.
	Flushed func()
	// Turn is called by a goroutine that several events may have woken at once.
	Turn func(what string)
	// Random is the source of randomness of the control services.
	Random io.Reader
}

// Disk stores a checkpoint.
type Disk interface {
	file.Disk
	Stat(path string) (fs.FileInfo, error)
	Open(path string) (io.ReadCloser, error)
	// Lock locks path for this process by a file of path's name and the suffix. It fails at once if
	// another process holds the lock.
	Lock(path, suffix string) (unlock func() error, err error)
}

// osDisk is the machine's own.
type osDisk struct{ file.OS }

func (osDisk) Stat(path string) (fs.FileInfo, error)   { return os.Stat(path) }
func (osDisk) Open(path string) (io.ReadCloser, error) { return file.Open(path) }
func (osDisk) Lock(path, suffix string) (unlock func() error, err error) {
	return file.Lock(path, suffix)
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

func (m *Machine) settled() {
	if m.Settled != nil {
		m.Settled()
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
