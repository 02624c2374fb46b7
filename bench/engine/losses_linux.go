package engine

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/internal/testbed"
)

// losses reads the counters of frames that were lost outside the tested program:
// at both ends of the cable, at UDP sockets of the tested end, and in the aggregator.
func (b *bed) losses() (map[string]uint64, error) {
	lost := map[string]uint64{}
	for _, end := range []struct {
		name  string
		node  *testbed.Node
		index int
	}{{"tested end", b.host(), b.host().Index}, {"opposite end", b.net.Switch(), b.host().PortIndex}} {
		err := end.node.Do(func() error {
			l, err := netlink.LinkByIndex(end.index)
			if err != nil {
				return err
			}
			if s := l.Attrs().Statistics; s != nil {
				lost[end.name+": RX dropped"] = s.RxDropped
				lost[end.name+": TX dropped"] = s.TxDropped
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("engine: read counters of the %s: %w", end.name, err)
		}
	}
	if err := b.aggregatorLosses(lost); err != nil {
		return nil, err
	}
	return lost, b.host().Do(func() error { return udpLosses(lost) })
}

// udpLosses adds the UDP error counters of the current namespace. The file has
// a line of names and a line of values for each protocol.
func udpLosses(lost map[string]uint64) error {
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return fmt.Errorf("engine: read UDP counters: %w", err)
	}
	_, udp, _ := strings.Cut(string(text), "\nUdp: ")
	names, udp, _ := strings.Cut(udp, "\nUdp: ")
	values, _, _ := strings.Cut(udp, "\n")
	fields := strings.Fields(values)
	for i, name := range strings.Fields(names) {
		if i < len(fields) && (name == "RcvbufErrors" || name == "SndbufErrors" || name == "InCsumErrors") {
			if lost["UDP: "+name], err = strconv.ParseUint(fields[i], 10, 64); err != nil {
				return fmt.Errorf("engine: UDP counter %s: %w", name, err)
			}
		}
	}
	return nil
}
