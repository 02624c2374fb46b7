// SPDX-License-Identifier: Apache-2.0

package netwatch

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// State is what the kernel says about an interface.
type State struct {
	Index   int // 0 if there is no such interface
	Name    string
	MAC     net.HardwareAddr
	MTU     int
	Up      bool // by the administrator
	Carrier bool
	Master  int            // index of the bridge that it is a port of, 0 for none
	Addrs   []netip.Prefix // read if there are needs for one, and by Find
}

// Has reports whether an address is one of the interface's.
func (s *State) Has(a netip.Addr) bool {
	return slices.ContainsFunc(s.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// Interface follows an interface: by its index while it exists, whatever its name, and then by its
// name, because an interface that is deleted and created again has another index.
type Interface struct {
	// Log gets what changes.
	Log *slog.Logger
	// Needs are checked at each look.
	Needs Needs
	// After, if set, says in one sentence what becomes of the user after an interface is back, and
	// Kept what becomes of frames after a change of the Ethernet address.
	After, Kept string

	configured string
	state      State
	wrong      map[string]string // what is wrong and was logged
	prefix     netip.Prefix      // last one of Needs.Address
	home       string            // first bridge that it was a port of
	bridge     string            // last one
}

// Needs are what a user has built upon.
type Needs struct {
	MinMTU  int        // frames of this MTU are sent and received; 0: of any
	MaxMTU  int        // frames of larger MTUs have no room; 0: there is room
	Address netip.Addr // under which others find the user; the zero value: none
	Bridge  bool       // the interface forwards as a port of a bridge, if it is one
}

// Find returns an interface by name, with its present state.
func Find(name string, log *slog.Logger, needs Needs) (*Interface, error) {
	i := &Interface{Log: log, Needs: needs, configured: name, wrong: make(map[string]string)}
	s, err := byName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	i.state = s
	if s.Index == 0 {
		return nil, fmt.Errorf("interface %s: %w", name, unix.ENODEV)
	}
	if err := i.state.readAddrs(); err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	s = i.state
	i.remember(State{}, s)
	return i, nil
}

// State returns the state at the last look.
func (i *Interface) State() State { return i.state }

// Name returns the present name, or the last one.
func (i *Interface) Name() string { return i.state.Name }

// Configured returns the name at the start.
func (i *Interface) Configured() string { return i.configured }

// Look reads the state again and logs what has changed. The error means that it could not be read,
// not that there is no interface: then State.Index is 0.
func (i *Interface) Look() (State, error) {
	now, err := i.read()
	if err == nil && now.Index != 0 && i.Needs.Address.IsValid() {
		err = now.readAddrs()
	}
	if err != nil {
		return i.state, err
	}
	before := i.state
	i.state = now
	i.remember(before, now)
	i.report(before, now)
	return now, nil
}

// remember notes what remedies need to name.
func (i *Interface) remember(before, now State) {
	for _, p := range now.Addrs {
		if p.Addr() == i.Needs.Address {
			i.prefix = p
		}
	}
	if now.Master != 0 && now.Master != before.Master {
		if l, err := netlink.LinkByIndex(now.Master); err == nil {
			i.bridge = l.Attrs().Name
			i.home = cmp.Or(i.home, i.bridge)
		}
	}
}

func (i *Interface) read() (State, error) {
	if i.state.Index != 0 {
		s, err := stateOf(netlink.LinkByIndex(i.state.Index))
		if err != nil || s.Index != 0 {
			return s, err
		}
	}
	for _, name := range []string{i.configured, i.state.Name} {
		s, err := byName(name)
		if err != nil || s.Index != 0 {
			return s, err
		}
	}
	return State{Name: i.state.Name}, nil
}

func byName(name string) (State, error) { return stateOf(netlink.LinkByName(name)) }

// stateOf returns the state of a link, without addresses. The index is 0 if there is none.
func stateOf(l netlink.Link, err error) (State, error) {
	if err != nil {
		var absent netlink.LinkNotFoundError
		if errors.As(err, &absent) || errors.Is(err, unix.ENODEV) {
			return State{}, nil
		}
		return State{}, err
	}
	a := l.Attrs()
	s := State{
		Index: a.Index, Name: a.Name, MAC: a.HardwareAddr, MTU: a.MTU, Up: a.RawFlags&unix.IFF_UP != 0,
		Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0, Master: a.MasterIndex,
	}
	return s, nil
}

// readAddrs reads the addresses of an interface.
func (s *State) readAddrs() error {
	l := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: s.Index, Name: s.Name}}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return err
	}
	for _, each := range addrs {
		if ip, ok := netip.AddrFromSlice(each.IP); ok {
			bits, _ := each.Mask.Size()
			s.Addrs = append(s.Addrs, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return nil
}

// report logs the differences.
func (i *Interface) report(before, now State) {
	log := i.Log.With("interface", i.configured)
	gone := now.Index == 0
	i.condition(log, "gone", gone,
		"the interface is gone, deleted or moved to another network namespace; one of its name is used as soon as it is up here: create it or move it back (ip link), with its addresses, or start the process again where it is",
		"the interface is back"+i.clause(i.After))
	if gone {
		return
	}
	if before.Index != 0 && before.Index != now.Index {
		log.Warn("the interface was replaced by another one of its name" + i.clause(i.After))
	}
	i.condition(log, "name", now.Name != i.configured,
		fmt.Sprintf("the interface has the name %s now; it is used as before, but a process that starts again does not find it: ip link set dev %[1]s name %s, or change the configuration", now.Name, i.configured),
		"the interface has its name again")
	if before.Index != 0 && len(before.MAC) > 0 && before.MAC.String() != now.MAC.String() {
		log.Warn("the interface has a different Ethernet address now"+i.clause(i.Kept), "before", before.MAC.String(), "now",
			now.MAC.String())
	}
	i.condition(log, "down", !now.Up, fmt.Sprintf("the interface is down, nothing passes it: ip link set dev %s up", now.Name),
		"the interface is up again")
	i.condition(log, "carrier", now.Up && !now.Carrier,
		"the interface has no link, nothing passes it: look at the cable and at the other end", "the interface has its link again")
	n := i.Needs
	i.condition(log, "low", n.MinMTU > 0 && now.MTU < n.MinMTU,
		fmt.Sprintf("the MTU was lowered to %d, and larger frames are lost: ip link set dev %s mtu %d, and the same at what is connected to it", now.MTU, now.Name, n.MinMTU),
		"the MTU is large enough again")
	i.condition(log, "high", n.MaxMTU > 0 && now.MTU > n.MaxMTU,
		fmt.Sprintf("the MTU was raised to %d, and received packets of more than %d bytes are dropped: ip link set dev %s mtu %d, or start the process again", now.MTU, n.MaxMTU, now.Name, n.MaxMTU),
		"packets of the MTU have room again")
	i.condition(log, "address", n.Address.IsValid() && !now.Has(n.Address),
		fmt.Sprintf("the interface has lost its address, and others do not find this host any more: ip address add %v dev %s", i.prefix, now.Name),
		"the interface has its address again")
	i.condition(log, "bridge", n.Bridge && i.home != "" && now.Master == 0,
		fmt.Sprintf("the port has left its bridge, and the host behind it is cut off from the others: ip link set dev %s master %s", now.Name, i.home),
		"the port is in a bridge again")
	i.condition(log, "other bridge", n.Bridge && now.Master != 0 && i.bridge != i.home,
		fmt.Sprintf("the port has moved to the bridge %s, and the host behind it is cut off from those of the bridge %s: ip link set dev %s master %[2]s", i.bridge, i.home, now.Name),
		"the port has left the other bridge")
}

func (i *Interface) clause(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// condition logs when something becomes wrong, and when it is right again.
func (i *Interface) condition(log *slog.Logger, what string, wrong bool, bad, good string) {
	_, was := i.wrong[what]
	switch {
	case wrong && !was:
		i.wrong[what] = bad
		log.Warn(bad)
	case !wrong && was:
		delete(i.wrong, what)
		log.Info(good)
	}
}

// Problem logs an error of a user's own look at a matter, once until it changes or is over; nil
// says that it is over.
func (i *Interface) Problem(what string, err error) {
	if err == nil {
		delete(i.wrong, what)
		return
	}
	text := what + ": " + err.Error()
	if i.wrong[what] != text {
		i.wrong[what] = text
		i.Log.Warn(what, "interface", i.configured, "error", err)
	}
}

// Wrong returns what is wrong with the interface at present, "" if nothing is.
func (i *Interface) Wrong() string {
	if len(i.wrong) == 0 {
		return ""
	}
	return i.configured + ": " + strings.Join(slices.Sorted(maps.Values(i.wrong)), "; ")
}
