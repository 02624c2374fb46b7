// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Steering makes the card put packets into a receive queue (ethtool -N, "ntuple"). It selects only
// the queue: the XDP program decides which packets leave the kernel's stack.
//
// The Match may consist of EtherTypes, of UDP and TCP packets by their ports and addresses, and of
// alternatives of these. Cards have no rules for Not and for ranges of ports, and a driver may
// support only a part of the others. Each alternative uses one of the card's rules, and IPv4 and
// IPv6 one each. If several rules match a packet, the card selects one.
type Steering struct {
	Match Match
	Queue int
}

// flow is the condition of one rule; zero fields are ignored.
type flow struct {
	etherType, protocol, source, dst uint16
	from, to                         netip.Prefix
}

// Constants of linux/ethtool.h.
const (
	flowTCP4, flowUDP4, flowTCP6, flowUDP6, flowEther = 1, 2, 5, 6, 0x12

	steersFlag    = 1 << 27 // ETH_FLAG_NTUPLE
	driverLocates = 1 << 31 // RX_CLS_LOC_SPECIAL: the driver selects the location of a rule
	anyLocation   = 1<<32 - 1
)

// flows returns the alternatives of a Match, and whether a card may have rules for them.
func (m Match) flows() (flows []flow, ok bool) {
	single := m.first == m.last && m.first != 0
	switch m.op {
	case matchOr:
		ok = true
		for _, a := range m.args {
			more, can := a.flows()
			flows, ok = append(flows, more...), ok && can
		}
		return flows, ok
	case matchAnd:
		flows, ok = []flow{{}}, true
		for _, a := range m.args {
			var both []flow
			more, can := a.flows()
			for _, f := range flows {
				for _, g := range more {
					both = append(both, flow{
						either(f.etherType, g.etherType, &can), either(f.protocol, g.protocol, &can),
						either(f.source, g.source, &can), either(f.dst, g.dst, &can),
						either(f.from, g.from, &can), either(f.to, g.to, &can),
					})
				}
			}
			flows, ok = both, ok && can
			if len(flows) > maxConditions {
				return nil, false
			}
		}
		return flows, ok
	case matchEtherType:
		return []flow{{etherType: m.first}}, single
	case matchProtocol:
		return []flow{{protocol: m.first}}, m.first == protoUDP || m.first == protoTCP
	case matchSourcePort:
		return []flow{{source: m.first}}, single
	case matchPort:
		return []flow{{dst: m.first}}, single
	case matchSource:
		return []flow{{from: m.prefix}}, true
	case matchDestination:
		return []flow{{to: m.prefix}}, true
	}
	return nil, false
}

// either returns the value that is not zero. If both are nonzero, they must be equal.
func either[T comparable](a, b T, ok *bool) T {
	var zero T
	if a == zero {
		return b
	}
	*ok = *ok && (b == zero || a == b)
	return a
}

// rules returns the card's rules for s.
func (s Steering) rules() ([]flowSpec, error) {
	if err := s.Match.Err(); err != nil {
		return nil, err
	}
	flows, ok := s.Match.flows()
	var rules []flowSpec
	for _, f := range flows {
		served := len(rules)
		if f == (flow{etherType: f.etherType}) {
			rules = append(rules, f.encodeRule(flowEther, s.Queue))
			continue
		}
		ip4, ip6 := f.overIP(etherIPv4), f.overIP(etherIPv6)
		for _, r := range []struct {
			kind     uint32
			protocol uint16
			over     bool
		}{{flowUDP4, protoUDP, ip4}, {flowUDP6, protoUDP, ip6}, {flowTCP4, protoTCP, ip4}, {flowTCP6, protoTCP, ip6}} {
			if r.over && (f.protocol == r.protocol || f.protocol == 0 && f.source|f.dst != 0) {
				rules = append(rules, f.encodeRule(r.kind, s.Queue))
			}
		}
		ok = ok && len(rules) > served // or the others' rules would hide that it has none
	}
	if !ok {
		return nil, fmt.Errorf("%w: Tuning.Steer: no card has a rule for the Match for queue %d; use EtherTypes, or ports, UDP, TCP and addresses, without Not and ranges", ErrConfig, s.Queue)
	}
	return rules, nil
}

// overIP reports whether packets of the flow may be of that version of IP.
func (f flow) overIP(etherType uint16) bool {
	if f.etherType != 0 && f.etherType != etherType {
		return false
	}
	for _, p := range []netip.Prefix{f.from, f.to} {
		if p.IsValid() && p.Addr().Is4() != (etherType == etherIPv4) {
			return false
		}
	}
	return true
}

// encodeRule encodes a flow in the layout of its kind.
func (f flow) encodeRule(kind uint32, queue int) flowSpec {
	r := flowSpec{Type: kind, Queue: uint64(queue)}
	number := func(at int, v uint16) {
		if v != 0 {
			binary.BigEndian.PutUint16(r.Value[at:], v)
			binary.BigEndian.PutUint16(r.Mask[at:], 0xffff)
		}
	}
	if kind == flowEther { // struct ethhdr
		number(12, f.etherType)
		return r
	}
	size := net.IPv4len // of an address; struct ethtool_tcpip4_spec, or ethtool_tcpip6_spec
	if kind == flowUDP6 || kind == flowTCP6 {
		size = net.IPv6len
	}
	for i, p := range []netip.Prefix{f.from, f.to} {
		if p.IsValid() {
			copy(r.Value[i*size:], p.Addr().AsSlice())
			copy(r.Mask[i*size:], net.CIDRMask(p.Bits(), 8*size))
		}
	}
	number(2*size, f.source)
	number(2*size+2, f.dst)
	return r
}

// steerFlows enables steering on the card and adds the rules.
func (t *Tuned) steerFlows(ifname string, steering []Steering) error {
	var rules []flowSpec
	queues, _, err := QueueCounts(ifname)
	for _, s := range steering {
		if s.Queue < 0 || err == nil && s.Queue >= queues {
			return fmt.Errorf("%w: %s has %d receive queues in use, Tuning.Steer names queue %d", ErrNoQueue, ifname, queues,
				s.Queue)
		}
		more, err := s.rules()
		if err != nil {
			return err
		}
		rules = append(rules, more...)
	}
	if err := t.allowSteering(ifname); err != nil {
		return err
	}
	for _, r := range rules {
		if err := t.addRule(ifname, r); err != nil {
			return explainSteer(ifname, err)
		}
	}
	return nil
}

// allowSteering makes the card use its rules.
func (t *Tuned) allowSteering(ifname string) error {
	before, err := getFlags(ifname)
	if err != nil || before&steersFlag != 0 {
		return explainSteer(ifname, err)
	}
	if err := setFlags(ifname, before|steersFlag); err != nil {
		return explainSteer(ifname, err)
	}
	t.undo = append(t.undo, func(ifname string) error {
		var rules flowRules
		now, err := getFlags(ifname)
		if err == nil {
			err = rules.callDriver(ifname, unix.ETHTOOL_GRXCLSRLCNT)
		}
		if err != nil || rules.Count > 0 {
			return err // another process's rules stay
		}
		return setFlags(ifname, now&^steersFlag)
	})
	return nil
}

// addRule adds a rule to the card.
func (t *Tuned) addRule(ifname string, rule flowSpec) error {
	var rules flowRules
	err := rules.callDriver(ifname, unix.ETHTOOL_GRXCLSRLCNT)
	if err == nil {
		rule.Location, err = rules.chooseLocation(func() error { return rules.callDriver(ifname, unix.ETHTOOL_GRXCLSRLALL) })
	}
	if err != nil {
		return err
	}
	rules.Spec = rule
	if err := rules.callDriver(ifname, unix.ETHTOOL_SRXCLSRLINS); err != nil {
		return err
	}
	at := rules.Spec.Location
	ours, err := getRule(ifname, at) // as the driver reports it
	t.undo = append(t.undo, func(ifname string) error {
		now, err := getRule(ifname, at)
		if othersChoice(ours, now, err) {
			return nil // it stays
		}
		if err == nil {
			rules.Spec.Location = at
			err = rules.callDriver(ifname, unix.ETHTOOL_SRXCLSRLDEL)
		}
		return err
	})
	return err
}

// othersChoice reports whether another process has since removed a rule or replaced it, from the
// reply to a query for it. Some drivers have no such entry, for others the location is invalid.
func othersChoice(ours, now flowSpec, err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || err == nil && now != ours
}

// chooseLocation returns the location of a new rule, as ethtool -N does: the driver's choice, if
// the driver has reported with their count that it chooses; otherwise, after list has returned the
// locations of its rules, the last free one.
func (r *flowRules) chooseLocation(list func() error) (uint32, error) {
	if r.Data&driverLocates != 0 {
		return anyLocation, nil
	}
	if int(r.Count) > len(r.Locations) {
		return 0, unix.ENOSPC
	}
	if err := list(); err != nil {
		return 0, err
	}
	for at := uint32(r.Data); at > 0; at-- {
		if !slices.Contains(r.Locations[:r.Count], at-1) {
			return at - 1, nil
		}
	}
	return 0, unix.ENOSPC
}

func getRule(ifname string, at uint32) (flowSpec, error) {
	rules := flowRules{Spec: flowSpec{Location: at}}
	err := rules.callDriver(ifname, unix.ETHTOOL_GRXCLSRULE)
	return rules.Spec, err
}

func explainSteer(ifname string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, unix.EINVAL):
		return &FeatureError{Feature: "Tuning.Steer on " + ifname, Needs: "a card that has such rules",
			Remedy: "steer by what its driver accepts (dmesg may say), or leave it out", Err: err}
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("afxdp: no room for another rule on %s; ethtool -n shows its rules: %w", ifname, err)
	}
	return explainTune(ifname, "steer packets", err)
}
