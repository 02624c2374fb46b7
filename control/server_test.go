package control

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
)

// roll is a Members that keeps a list, as a transport.Server does.
type roll struct {
	mu      sync.Mutex
	members map[uint16]admittedAs
	history []admittedAs // all admissions
	admit   error        // returned by Admit while set
}

type admittedAs struct {
	from  netip.AddrPort
	epoch uint16
}

func (r *roll) Admit(_ context.Context, sender uint16, from netip.AddrPort, epoch uint16) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.admit != nil {
		return r.admit
	}
	if _, ok := r.members[sender]; ok {
		return fmt.Errorf("sender %d is admitted already", sender)
	}
	if r.members == nil {
		r.members = map[uint16]admittedAs{}
	}
	r.members[sender] = admittedAs{from, epoch}
	r.history = append(r.history, admittedAs{from, epoch})
	return nil
}

func (r *roll) Remove(_ context.Context, sender uint16) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.members, sender)
	return nil
}
