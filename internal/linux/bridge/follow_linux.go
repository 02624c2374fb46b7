// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// Plane is a data plane that forwards frames, such as bpf.Aggregator.
type Plane interface {
	// AddRoute declares that a host is behind an interface.
	AddRoute(mac [6]byte, iface string) error
	// RemoveRoute reverses AddRoute.
	RemoveRoute(mac [6]byte) error
	// SetForwarding allows or forbids forwarding of frames that arrive or leave on an interface.
	SetForwarding(iface string, on bool) error
}

const (
	// Changes are followed at once, but the tables are not read more often than this, so that
	// frequent changes cannot keep a CPU busy.
	minInterval = 20 * time.Millisecond
	// Without changes they are read this often, in case one was missed.
	maxInterval = 10 * time.Second
)

// Follower keeps a data plane's routes equal to a bridge's forwarding table.
type Follower struct {
	plane     Plane
	log       *slog.Logger
	forwards  bool           // whether any frames may be forwarded
	names     map[int]string // names of the interfaces at the start, by their present or last index
	namespace *sys.Namespace // namespace of the follower
	requests  *nl.NetlinkSocket
	changes   *nl.NetlinkSocket

	mu    sync.Mutex
	hosts map[[6]byte]int // number of users of each host

	wake chan struct{} // has room for one signal
	stop chan struct{}
	ends sync.WaitGroup

	// The state of the data plane. Used by the goroutine that follows.
	routes map[[6]byte]string
	ports  map[string]bool
	failed string // the last error, which is logged once
}

// Follow starts to follow the bridge of the interfaces, in the caller's network namespace.
// Interfaces of another bridge, or of none, forward nothing, and if forwards is false, no interface
// does. Errors after the start are logged; in doubt, frames are left to the bridge.
func Follow(interfaces []string, plane Plane, forwards bool, log *slog.Logger) (_ *Follower, err error) {
	f := &Follower{
		plane: plane, log: log, forwards: forwards, names: make(map[int]string), hosts: make(map[[6]byte]int),
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
		routes: make(map[[6]byte]string), ports: make(map[string]bool),
	}
	for _, name := range interfaces {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("follow the bridge: interface %s: %w", name, err)
		}
		f.names[ifi.Index] = name
	}
	defer func() {
		if err != nil {
			f.release()
			err = fmt.Errorf("follow the bridge: %w", err)
		}
	}()
	if f.namespace, err = sys.ThreadNamespace(); err != nil {
		return nil, err
	}
	if f.changes, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH); err != nil {
		return nil, err
	}
	if f.requests, err = nl.Subscribe(unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if err := f.refresh(); err != nil {
		return nil, err
	}
	f.ends.Go(f.listen)
	f.ends.Go(f.follow)
	return f, nil
}

// Reach adds a host to the followed ones until release is called, which may be called more than
// once.
func (f *Follower) Reach(mac [6]byte) (release func()) {
	f.count(mac, 1)
	return sync.OnceFunc(func() { f.count(mac, -1) })
}

func (f *Follower) count(mac [6]byte, by int) {
	f.mu.Lock()
	if f.hosts[mac] += by; f.hosts[mac] == 0 {
		delete(f.hosts, mac)
	}
	f.mu.Unlock()
	f.changed()
}

// Close stops following. The data plane keeps its last state.
func (f *Follower) Close() {
	close(f.stop)
	f.changes.Close()
	f.ends.Wait()
	f.release()
}

func (f *Follower) release() {
	for _, s := range []*nl.NetlinkSocket{f.changes, f.requests} {
		if s != nil {
			s.Close()
		}
	}
	if f.namespace != nil {
		f.namespace.Close()
	}
}

func (f *Follower) changed() {
	select {
	case f.wake <- struct{}{}:
	default: // a read is already pending
	}
}

// listen wakes the other goroutine on changes.
func (f *Follower) listen() {
	for {
		messages, _, err := f.changes.Receive()
		if err != nil { // some messages were missed, or the socket was closed
			select {
			case <-f.stop:
				return
			case <-time.After(minInterval):
			}
		}
		concerns := err != nil
		for _, m := range messages {
			concerns = concerns || f.concerns(m.Header.Type, m.Data)
		}
		if concerns {
			f.changed()
		}
	}
}

// concerns returns whether a message may change the state of the data plane.
func (f *Follower) concerns(kind uint16, m []byte) bool {
	switch kind {
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		e, ok := parseEntry(m)
		if !ok {
			return false
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.hosts[e.mac] > 0
	}
	return true
}

// follow updates the data plane after changes.
func (f *Follower) follow() {
	if err := f.namespace.Run(f.refreshes); err != nil {
		f.log.Error("the bridge is not followed: hosts that move are not found", "error", err)
	}
}

// refreshes runs until Close.
func (f *Follower) refreshes() error {
	for {
		select {
		case <-f.stop:
			return nil
		case <-f.wake:
		case <-time.After(maxInterval):
		}
		err := f.refresh()
		if text := fmt.Sprint(err); err != nil && text != f.failed {
			f.log.Warn("frames between hosts go through the kernel's bridge", "error", err)
			f.failed = text
		} else if err == nil {
			f.failed = ""
		}
		select {
		case <-f.stop:
			return nil
		case <-time.After(minInterval):
		}
	}
}

// refresh reads the bridge's state and updates the data plane.
func (f *Follower) refresh() error {
	ports, err := readPorts(f.requests)
	if err != nil {
		return errors.Join(err, f.updatePlane(nil, nil))
	}
	table, err := readTable(f.requests)
	if err != nil {
		return errors.Join(err, f.updatePlane(nil, nil))
	}
	f.mu.Lock()
	hosts := maps.Clone(f.hosts)
	f.mu.Unlock()
	f.adopt(ports)
	return f.updatePlane(f.decide(ports, table, hosts))
}

// adopt finds the interfaces that were deleted and created again, which have other indexes. The
// data plane is told of their routes again.
func (f *Follower) adopt(ports map[int]port) {
	byName := make(map[string]int)
	for index, p := range ports {
		byName[p.name] = index
	}
	for index, name := range maps.Clone(f.names) {
		_, alive := ports[index]
		now, exists := byName[name]
		if alive || !exists {
			continue
		}
		if _, taken := f.names[now]; taken {
			continue // another of the interfaces has the name now
		}
		delete(f.names, index)
		f.names[now] = name
		delete(f.ports, name)
		maps.DeleteFunc(f.routes, func(_ [6]byte, at string) bool { return at == name })
	}
}

// decide returns the interfaces of the hosts, and the interfaces that forward.
func (f *Follower) decide(ports map[int]port, table []entry, hosts map[[6]byte]int) (map[[6]byte]string,
	map[string]bool) {
	bridge := 0
	for _, index := range slices.Sorted(maps.Keys(f.names)) {
		if bridge == 0 {
			bridge = ports[index].bridge
		}
	}
	forwards := make(map[string]bool)
	for index := range f.names {
		if p, ok := ports[index]; ok { // its name may have changed
			forwards[p.name] = f.forwards && bridge != 0 && p.bridge == bridge && p.forwards && !ports[bridge].filters
		}
	}
	routes := make(map[[6]byte]string)
	for _, e := range table {
		_, ours := f.names[e.port]
		if p, ok := ports[e.port]; ours && ok && e.bridge == bridge && hosts[e.mac] > 0 {
			routes[e.mac] = p.name
		}
	}
	return routes, forwards
}

// updatePlane updates the data plane. An update that it refuses is tried again the next time.
func (f *Follower) updatePlane(routes map[[6]byte]string, forwards map[string]bool) error {
	var errs []error
	for name := range f.ports {
		if _, ok := forwards[name]; !ok {
			delete(f.ports, name)
		}
	}
	for name, on := range forwards {
		if was, ok := f.ports[name]; ok && was == on {
			continue
		}
		if err := f.plane.SetForwarding(name, on); err != nil {
			errs = append(errs, err)
			continue
		}
		f.ports[name] = on
	}
	for mac := range f.routes {
		if _, ok := routes[mac]; ok {
			continue
		}
		if err := f.plane.RemoveRoute(mac); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(f.routes, mac)
	}
	for mac, name := range routes {
		if f.routes[mac] == name {
			continue
		}
		if err := f.plane.AddRoute(mac, name); err != nil {
			errs = append(errs, err)
			continue
		}
		f.routes[mac] = name
	}
	return errors.Join(errs...)
}
