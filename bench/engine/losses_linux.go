package engine

import (
	"bufio"
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
	f, err := os.Open("/proc/thread-self/net/snmp")
	if err != nil {
		return fmt.Errorf("engine: read UDP counters: %w", err)
	}
	defer f.Close()
	var names []string
	for scan := bufio.NewScanner(f); scan.Scan(); {
		fields := strings.Fields(scan.Text())
		if len(fields) == 0 || fields[0] != "Udp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if i < len(fields) && (name == "RcvbufErrors" || name == "SndbufErrors" || name == "InCsumErrors") {
				n, err := strconv.ParseUint(fields[i], 10, 64)
				if err != nil {
					return fmt.Errorf("engine: UDP counter %s: %w", name, err)
				}
				lost["UDP: "+name] = n
			}
		}
	}
	return nil
}
