// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of <linux/if_link.h> and <linux/if_bridge.h>.
const (
	bridgeVLANFiltering = 7  // IFLA_BR_VLAN_FILTERING
	portState           = 1  // IFLA_BRPORT_STATE
	portIsolated        = 33 // IFLA_BRPORT_ISOLATED
	portLocked          = 39 // IFLA_BRPORT_LOCKED
	stateForwarding     = 3  // BR_STATE_FORWARDING
)

// port is the bridge's state of an interface.
type port struct {
	name   string
	bridge int // index of the bridge that it belongs to, 0 for none
	// forwards is set if the bridge treats it like any other port: it is not blocked, isolated or
	// locked.
	forwards bool
	// filters is set if it is itself a bridge and filters frames by VLAN.
	filters bool
}

// entry is an entry of a forwarding table: the port of an address.
type entry struct {
	mac    [6]byte
	port   int
	bridge int
}

// readPorts reads all interfaces, by index.
func readPorts(s *nl.NetlinkSocket) (map[int]port, error) {
	req := request(s, unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := dump(req, unix.RTM_NEWLINK)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	ports := make(map[int]port)
	for _, m := range messages {
		if len(m) < unix.SizeofIfInfomsg {
			continue
		}
		p, err := parsePort(m[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		ports[int(int32(binary.NativeEndian.Uint32(m[4:])))] = p
	}
	return ports, nil
}

// parsePort reads the attributes of an interface.
func parsePort(attributes []byte) (p port, err error) {
	err = each(attributes, func(kind uint16, value []byte) error {
		switch kind {
		case unix.IFLA_IFNAME:
			p.name = unix.ByteSliceToString(value)
		case unix.IFLA_MASTER:
			p.bridge = int(number(value))
		case unix.IFLA_LINKINFO:
			return p.parseInfo(value)
		}
		return nil
	})
	return p, err
}

// parseInfo reads IFLA_LINKINFO. A kind comes before its data.
func (p *port) parseInfo(info []byte) error {
	var self, slave string
	return each(info, func(kind uint16, value []byte) error {
		switch kind {
		case unix.IFLA_INFO_KIND:
			self = unix.ByteSliceToString(value)
		case unix.IFLA_INFO_SLAVE_KIND:
			slave = unix.ByteSliceToString(value)
		case unix.IFLA_INFO_DATA:
			if self != "bridge" {
				return nil
			}
			return each(value, func(kind uint16, value []byte) error {
				p.filters = p.filters || kind == bridgeVLANFiltering && number(value) != 0
				return nil
			})
		case unix.IFLA_INFO_SLAVE_DATA:
			if slave != "bridge" {
				return nil
			}
			state, special := uint32(0), false
			err := each(value, func(kind uint16, value []byte) error {
				switch kind {
				case portState:
					state = number(value)
				case portIsolated, portLocked:
					special = special || number(value) != 0
				}
				return nil
			})
			p.forwards = state == stateForwarding && !special
			return err
		}
		return nil
	})
}

// readTable reads the forwarding tables of all bridges.
func readTable(s *nl.NetlinkSocket) ([]entry, error) {
	req := request(s, unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	messages, err := dump(req, unix.RTM_NEWNEIGH)
	if err != nil {
		return nil, fmt.Errorf("bridge's forwarding table: %w", err)
	}
	var table []entry
	for _, m := range messages {
		if e, ok := parseEntry(m); ok {
			table = append(table, e)
		}
	}
	return table, nil
}

// parseEntry reads a message about a neighbour. It returns false if it is not about a host behind a
// bridge's port.
func parseEntry(m []byte) (e entry, ok bool) {
	if len(m) < unix.SizeofNdMsg || m[0] != unix.AF_BRIDGE {
		return e, false
	}
	n, err := netlink.NeighDeserialize(m)
	if err != nil || len(n.HardwareAddr) != len(e.mac) || n.State&unix.NUD_PERMANENT != 0 || n.Flags&unix.NTF_SELF != 0 {
		return e, false // the addresses of the bridge and its ports are permanent
	}
	return entry{[6]byte(n.HardwareAddr), n.LinkIndex, n.MasterIndex}, true
}

func request(s *nl.NetlinkSocket, kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	return req
}

// dump repeats a listing until nothing has changed in the meantime.
func dump(req *nl.NetlinkRequest, answer uint16) (messages [][]byte, err error) {
	for range 5 {
		messages, err = req.Execute(unix.NETLINK_ROUTE, answer)
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	return messages, err
}

func each(attributes []byte, f func(kind uint16, value []byte) error) error {
	parsed, err := nl.ParseRouteAttr(attributes)
	for _, a := range parsed {
		if err == nil {
			err = f(a.Attr.Type&^unix.NLA_F_NESTED, a.Value)
		}
	}
	return err
}

// number returns the value of an integer attribute of one or four bytes.
func number(value []byte) uint32 {
	switch len(value) {
	case 1:
		return uint32(value[0])
	case 4:
		return binary.NativeEndian.Uint32(value)
	}
	return 0
}
