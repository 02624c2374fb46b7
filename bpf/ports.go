// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"net"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
)

// port is an interface that the program is attached to.
type port struct {
	*afxdp.Attachment
	index uint32
}

// portSet is the destination of answers to all senders of a job: a BPF map of interface indices.
// The aggregator's lock guards it.
type portSet struct {
	m       *ebpf.Map
	members map[uint32]struct{}
	senders map[uint16][6]byte // the job's MAC addresses by sender
}

// newPortSet returns an empty set, or nil for a job that has no such answers.
func newPortSet(spec *ebpf.MapSpec, cfg aggregator.JobConfig) (*portSet, error) {
	if cfg.Workers == 0 {
		return nil, nil
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("create set of ports: %w", err)
	}
	return &portSet{m: m, members: make(map[uint32]struct{}), senders: make(map[uint16][6]byte)}, nil
}

func (s *portSet) closeSet() error {
	if s == nil {
		return nil
	}
	return s.m.Close()
}

// replacePorts makes the set equal to want. It adds ports before it deletes others, so that the
// ports in both are never missing.
func (s *portSet) replacePorts(want map[uint32]struct{}) error {
	for p := range want {
		if _, ok := s.members[p]; ok {
			continue
		}
		if err := s.m.Put(p, p); err != nil {
			if _, gone := net.InterfaceByIndex(int(p)); gone != nil {
				continue // a removed interface needs no frames
			}
			if errors.Is(err, unix.E2BIG) {
				err = fmt.Errorf("the limit is %d: %w", s.m.MaxEntries(), err)
			}
			return fmt.Errorf("add interface %d to its ports: %w", p, err)
		}
		s.members[p] = struct{}{}
	}
	for p := range s.members {
		if _, ok := want[p]; ok {
			continue
		}
		// The kernel deletes interfaces that were removed.
		if err := s.m.Delete(p); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove interface %d from its ports: %w", p, err)
		}
		delete(s.members, p)
	}
	return nil
}

// interfaceIndex returns the index of an interface in the caller's namespace,
// which becomes the aggregator's.
func (a *Aggregator) interfaceIndex(name string) (uint32, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return 0, fmt.Errorf("bpf: interface %s: %w", name, err)
	}
	if err := a.home.settleIn(); err != nil {
		return 0, fmt.Errorf("bpf: interface %s: %w", name, err)
	}
	return uint32(ifi.Index), nil
}

// addToSet adds a sender to the destination of a job's answers to all.
func (a *Aggregator) addToSet(set *portSet, s aggregator.SenderConfig) error {
	if set == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	set.senders[s.ID] = s.MAC
	err := a.updatePorts(set)
	if err != nil {
		delete(set.senders, s.ID)
	}
	return err
}

// removeFromSet reverses addToSet.
func (a *Aggregator) removeFromSet(set *portSet, sender uint16) error {
	if set == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(set.senders, sender)
	return a.updatePorts(set)
}

// updatePorts brings a set of ports up to date: the route of each sender's address
// if there is one, otherwise all ports. The caller holds the lock.
func (a *Aggregator) updatePorts(set *portSet) error {
	want := make(map[uint32]struct{})
	for _, mac := range set.senders {
		if p, ok := a.routes[mac]; ok {
			want[p] = struct{}{}
			continue
		}
		for _, p := range a.ports {
			want[p.index] = struct{}{}
		}
	}
	if maps.Equal(want, set.members) {
		return nil
	}
	// The kernel looks up the interface in the caller's namespace.
	return a.home.runInside(func() error { return set.replacePorts(want) })
}

// updateAllPorts is updatePorts for all jobs, after a change of ports or routes.
func (a *Aggregator) updateAllPorts() error {
	var errs []error
	for id, set := range a.sets {
		if err := a.updatePorts(set); err != nil {
			errs = append(errs, fmt.Errorf("bpf: job %d: %w", id, err))
		}
	}
	return errors.Join(errs...)
}
