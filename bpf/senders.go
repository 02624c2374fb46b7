// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/libra-ina/libra/aggregator"
)

// AddSender implements [aggregator.Plane].
func (a *Aggregator) AddSender(id uint16, s aggregator.SenderConfig) error {
	p, err := a.placeOf(id)
	if err != nil {
		return err
	}
	p.admission.Lock()
	defer p.admission.Unlock()
	j, err := p.runningJob(id)
	if err != nil {
		return err
	}
	_, present := j.senders[s.ID]
	if err := j.CheckSender(s, present, j.admitted); err != nil {
		return err
	}
	s.IP = s.IP.Unmap()
	if !s.IP.Is4() {
		return fmt.Errorf("job %d: sender %d: address %v: %w: senders have an IPv4 address",
			id, s.ID, s.IP, aggregator.ErrUnsupported)
	}
	s.Port = cmp.Or(s.Port, a.port)
	ip := s.IP.As4()
	value := aggregateSender{
		Key: aggregateSenderKey{Job: id, Sender: s.ID},
		Ip:  binary.NativeEndian.Uint32(ip[:]), Port: networkOrder(s.Port),
		Epoch: networkOrder(s.Epoch), Position: uint8(j.admitted),
	}
	for i := range value.Mac {
		value.Mac[i] = binary.NativeEndian.Uint16(s.MAC[2*i:])
	}
	m := member{SenderConfig: s}
	if m.index, err = a.senders.admitSender(value); err != nil {
		return fmt.Errorf("bpf: job %d: sender %d: %w", id, s.ID, err)
	}
	if err := a.addToSet(j.ports, s); err != nil {
		return errors.Join(fmt.Errorf("bpf: job %d: %w", id, err), a.withdrawMember(p, j, m))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	j.senders[s.ID] = m
	j.admitted++
	return nil
}

// RemoveSender implements [aggregator.Plane].
func (a *Aggregator) RemoveSender(id, sender uint16) error {
	p, err := a.placeOf(id)
	if err != nil {
		return err
	}
	p.admission.Lock()
	defer p.admission.Unlock()
	j, err := p.runningJob(id)
	if err != nil {
		return err
	}
	m, ok := j.senders[sender]
	if !ok {
		return fmt.Errorf("job %d: sender %d: %w", id, sender, aggregator.ErrNoSender)
	}
	return errors.Join(a.withdrawMember(p, j, m), a.removeFromSet(j.ports, sender))
}
