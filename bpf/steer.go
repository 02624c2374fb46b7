//go:build linux

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/wire"
)

// SteerOptions configure a [Steer].
type SteerOptions struct {
	// Interface is the name of the host's interface. Required.
	Interface string

	// Port is the UDP port whose frames go to the sockets. 0 means
	// [wire.DefaultPort].
	Port uint16

	// Mode chooses between the driver's XDP hook and the generic one.
	Mode afxdp.AttachMode

	// Queues is the size of the XSKMAP. 0 means 64.
	Queues int
}

// Steer is the steering program on one interface of a host. Frames of the
// Libra port (IPv4 or IPv6, at most one VLAN tag) go to the AF_XDP socket of
// the queue that they arrived on; all others, and those of queues without a
// socket, go to the kernel.
type Steer struct {
	objects steerObjects
	at      *afxdp.Attachment
}

// OpenSteer loads the program and puts it on the interface.
func OpenSteer(o SteerOptions) (*Steer, error) {
	if o.Port == 0 {
		o.Port = wire.DefaultPort
	}
	spec, err := loadSteer()
	if err != nil {
		return nil, err
	}
	if o.Queues != 0 {
		spec.Maps[steerMapSockets].MaxEntries = uint32(o.Queues)
	}
	if err := spec.Variables[steerVarPort].Set(networkOrder(o.Port)); err != nil {
		return nil, fmt.Errorf("bpf: %w", err)
	}
	s := &Steer{}
	if err := load(spec, &s.objects); err != nil {
		return nil, err
	}
	s.at, err = afxdp.Attach(afxdp.AttachConfig{Interface: o.Interface, Mode: o.Mode, Program: s.objects.Steer})
	if err != nil {
		return nil, errors.Join(err, s.objects.Close())
	}
	return s, nil
}

// Sockets returns the XSKMAP, from queue to socket. It belongs to the Steer.
func (s *Steer) Sockets() *ebpf.Map { return s.objects.Sockets }

// Mode returns the mode that the kernel uses.
func (s *Steer) Mode() afxdp.AttachMode { return s.at.Mode() }

// Close takes the program off the interface. It may be called more than once.
func (s *Steer) Close() error {
	return errors.Join(s.at.Close(), s.objects.Close())
}
