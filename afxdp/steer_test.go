// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The structures are laid out as linux/ethtool.h has them on machines of 64 bits.
func TestRulesAreLaidOutAsTheKernelsAre(t *testing.T) {
	var r flowRules
	got := []uintptr{
		unsafe.Offsetof(r.Data), unsafe.Offsetof(r.Spec), unsafe.Offsetof(r.Spec.ValueExt), unsafe.Offsetof(r.Spec.Mask), unsafe.Offsetof(r.Spec.MaskExt),
		unsafe.Offsetof(r.Spec.Queue), unsafe.Offsetof(r.Spec.Location), unsafe.Sizeof(r.Spec), unsafe.Offsetof(r.Count), unsafe.Offsetof(r.Locations),
	}
	if diff := cmp.Diff([]uintptr{8, 16, 56, 76, 128, 152, 160, 168, 184, 188}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRulesOfAMatch(t *testing.T) {
	net4, host6 := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8::1/128")
	// rule has values at places; their masks are ones, or the first bits of an address.
	type value struct {
		at, bits int
		bytes    []byte
	}
	port := func(at int, p uint16) value { return value{at, 16, binary.BigEndian.AppendUint16(nil, p)} }
	rule := func(kind uint32, values ...value) flowSpec {
		r := flowSpec{Type: kind, Queue: 3}
		for _, v := range values {
			copy(r.Value[v.at:], v.bytes)
			for bit := range v.bits {
				r.Mask[v.at+bit/8] |= 0x80 >> (bit % 8)
			}
		}
		return r
	}
	const udp4, udp6, tcp4, tcp6, ether = 2, 6, 1, 5, 0x12
	for name, c := range map[string]struct {
		match Match
		want  []flowSpec
	}{
		"EtherType": {MatchEtherType(0x88b5), []flowSpec{rule(ether, port(12, 0x88b5))}},
		"UDP port":  {MatchUDP(9000), []flowSpec{rule(udp4, port(10, 9000)), rule(udp6, port(34, 9000))}},
		"UDP ports": {MatchUDP(1, 2), []flowSpec{rule(udp4, port(10, 1)), rule(udp6, port(34, 1)), rule(udp4, port(10, 2)), rule(udp6, port(34, 2))}},
		"either":    {MatchUDP(1).Or(MatchEtherType(2)), []flowSpec{rule(udp4, port(10, 1)), rule(udp6, port(34, 1)), rule(ether, port(12, 2))}},
		"any of both protocols": {MatchSourcePort(53), []flowSpec{
			rule(udp4, port(8, 53)), rule(udp6, port(32, 53)), rule(tcp4, port(8, 53)), rule(tcp6, port(32, 53)),
		}},
		"IPv4 only":   {MatchUDP(9000).And(MatchEtherType(0x800)), []flowSpec{rule(udp4, port(10, 9000))}},
		"all of UDP":  {MatchProtocol(17), []flowSpec{rule(udp4), rule(udp6)}},
		"from a net":  {MatchTCP(22).And(MatchSource(net4)), []flowSpec{rule(tcp4, port(10, 22), value{0, 16, []byte{10, 1}})}},
		"to a host":   {MatchUDP(1).And(MatchDestination(host6)), []flowSpec{rule(udp6, port(34, 1), value{16, 128, host6.Addr().AsSlice()})}},
		"said twice":  {MatchUDP(1).And(MatchPort(1)), []flowSpec{rule(udp4, port(10, 1)), rule(udp6, port(34, 1))}},
		"parts of it": {MatchProtocol(17).And(MatchSourcePort(5)).And(MatchPort(6)), []flowSpec{rule(udp4, port(8, 5), port(10, 6)), rule(udp6, port(32, 5), port(34, 6))}},
	} {
		got, err := Steering{Match: c.match, Queue: 3}.rules()
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(flowSpec{})); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	many := make([]uint16, 200)
	for i := range many {
		many[i] = uint16(i + 1)
	}
	for name, m := range map[string]Match{
		"all":                    MatchAll(),
		"not":                    MatchUDP(1).Not(),
		"one of them":            MatchUDP(1).Or(MatchUDP(2).Not()),
		"range":                  MatchPortRange(1, 2),
		"port 0":                 MatchUDP(0),
		"EtherType 0":            MatchEtherType(0),
		"ICMP":                   MatchProtocol(1),
		"an address alone":       MatchSource(net4),
		"and ports of all":       MatchPort(53).Or(MatchSource(net4)),
		"two ports of one":       MatchUDP(1).And(MatchPort(2)),
		"no version of IP":       MatchUDP(1).And(MatchSource(net4), MatchDestination(host6)),
		"port of another type":   MatchUDP(1).And(MatchEtherType(0x88b5)),
		"more than a card holds": MatchSourcePort(many[:100]...).And(MatchPort(many[:100]...)),
	} {
		if rules, err := (Steering{Match: m}).rules(); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v, %v", name, rules, err)
		}
	}
}

// Drivers answer in two ways: those that choose the place of a rule set a flag next to the count of
// their rules, the others report the size of their table with the used places. ethtool (rxclass.c,
// rmgr_init and rmgr_find_empty_slot) treats these answers in the same way, and does not query the
// former drivers again.
func TestPlaceOfARule(t *testing.T) {
	const special, anywhere = 1 << 31, 0xffffffff // RX_CLS_LOC_SPECIAL, RX_CLS_LOC_ANY
	for name, c := range map[string]struct {
		count uint32
		data  uint64 // beside the count
		size  uint64 // of the table, told with the places
		taken []uint32
		want  uint32
		asked int
		err   error
	}{
		"the driver chooses":          {0, special, 0, nil, anywhere, 0, nil},
		"and tells a size":            {3, special | 16, 0, nil, anywhere, 0, nil},
		"and has many":                {9000, special, 0, nil, anywhere, 0, nil},
		"no rules":                    {0, 0, 24, nil, 23, 1, nil},
		"a size beside the count":     {0, 24, 24, nil, 23, 1, nil},
		"others at the front":         {2, 0, 24, []uint32{0, 1}, 23, 1, nil},
		"others at the end":           {2, 0, 24, []uint32{22, 23}, 21, 1, nil},
		"a gap":                       {3, 0, 4, []uint32{3, 0, 2}, 1, 1, nil},
		"the first only":              {2, 0, 3, []uint32{2, 1}, 0, 1, nil},
		"full":                        {3, 0, 3, []uint32{2, 0, 1}, 0, 1, unix.ENOSPC},
		"no table":                    {0, 0, 0, nil, 0, 1, unix.ENOSPC},
		"all that can be told":        {8192, 0, 8193, upToLocation(8192), 8192, 1, nil},
		"more rules than can be told": {8193, 0, 9000, nil, 0, 0, unix.ENOSPC},
		"the driver refuses to tell":  {0, 0, 24, nil, 0, 1, unix.EOPNOTSUPP},
	} {
		rules, asked := flowRules{Count: c.count, Data: c.data}, 0
		got, err := rules.chooseLocation(func() error {
			asked++
			rules.Data = c.size
			copy(rules.Locations[:], c.taken)
			if errors.Is(c.err, unix.EOPNOTSUPP) {
				return c.err
			}
			return nil
		})
		if got != c.want || asked != c.asked || !errors.Is(err, c.err) {
			t.Errorf("%s: %d after %d questions, %v; want %d after %d, %v", name, got, asked, err, c.want, c.asked, c.err)
		}
	}
}

// A rule that another process has removed or replaced is not changed; it is an error if the driver
// does not report a rule.
func TestRulesOfOthersStay(t *testing.T) {
	ours, other := flowSpec{Type: 2, Queue: 3}, flowSpec{Type: 2, Queue: 4}
	for name, c := range map[string]struct {
		now  flowSpec
		err  error
		want bool
	}{
		"as it was":             {ours, nil, false},
		"another rule":          {other, nil, true},
		"no entry":              {flowSpec{}, unix.ENOENT, true},
		"no valid location":     {flowSpec{}, unix.EINVAL, true},
		"the card is not there": {flowSpec{}, unix.ENODEV, false},
		"not told":              {ours, unix.EIO, false},
	} {
		if got := othersChoice(ours, c.now, c.err); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func upToLocation(n uint32) (all []uint32) {
	for at := range n {
		all = append(all, at)
	}
	return all
}

// Rules are added to a card and removed. Drivers support some kinds of rules; igb only EtherTypes,
// and not on the card that QEMU emulates; its virtio-net supports none. A refusal does not change
// them.
func TestZeroCopyCardSteers(t *testing.T) {
	a, _ := zeroCopyNICs(t)
	waitLink(t, a)
	queues, _, err := QueueCounts(a)
	if err != nil {
		t.Fatal(err)
	}
	type state struct {
		On    bool
		Rules []flowSpec
	}
	read := func() (s state) {
		t.Helper()
		flags, err := getFlags(a)
		var all flowRules
		if err == nil {
			err = all.callDriver(a, unix.ETHTOOL_GRXCLSRLCNT)
		}
		if err == nil {
			err = all.callDriver(a, unix.ETHTOOL_GRXCLSRLALL)
		}
		for _, at := range all.Locations[:all.Count] {
			rule, ruleErr := getRule(a, at)
			s.Rules, err = append(s.Rules, rule), errors.Join(err, ruleErr)
		}
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Fatal(err)
		}
		s.On = flags&steersFlag != 0
		return s
	}
	as := func(t *testing.T, when string, want state) {
		t.Helper()
		if diff := cmp.Diff(want, read(), cmp.AllowUnexported(flowSpec{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	before := read()
	// steer makes the card send matching packets to its last queue, or skips if it does not support
	// such rules.
	steer := func(t *testing.T, m Match) *Tuned {
		t.Helper()
		tuned, err := Tune(t.Context(), a, Tuning{Steer: []Steering{{Match: m, Queue: queues - 1}}})
		var missing *FeatureError
		if errors.As(err, &missing) {
			if missing.Remedy == "" {
				t.Error(err)
			}
			as(t, "after a refusal", before)
			waitLink(t, a)
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tuned
	}
	for name, matches := range map[string][2]Match{
		"UDP":       {MatchUDP(9000).And(MatchEtherType(etherIPv4)), MatchUDP(9001).And(MatchEtherType(etherIPv4))},
		"EtherType": {MatchEtherType(testEtherType), MatchEtherType(testEtherType + 1)},
	} {
		t.Run(name, func(t *testing.T) {
			first := steer(t, matches[0])
			with := read()
			if !with.On || len(with.Rules) != len(before.Rules)+1 {
				t.Errorf("%+v, and before %+v", with, before)
			}
			second := steer(t, matches[1])
			if now := read(); len(now.Rules) != len(with.Rules)+1 {
				t.Errorf("%+v, and with a rule less %+v", now, with)
			}
			if err := second.Close(); err != nil {
				t.Error(err)
			}
			as(t, "after the second is closed", with)
			if err := errors.Join(first.Close(), first.Close()); err != nil {
				t.Error(err)
			}
			as(t, "in the end", before)
			waitLink(t, a)
		})
	}
}
