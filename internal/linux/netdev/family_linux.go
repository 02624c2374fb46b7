// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The generic netlink family of <linux/netdev.h>, and its multicast group for changes.
const (
	familyName = "netdev"
	group      = "mgmt"
)

// family is the kernel's number of a generic netlink family.
type family uint16

// header is struct genlmsghdr, with zero reserved bytes, which the kernel requires here and
// [nl.Genlmsg] does not ensure: it has two bytes, of which four are read.
type header [nl.SizeofGenlmsg]byte

func (h header) Len() int          { return len(h) }
func (h header) Serialize() []byte { return h[:] }

// xdpFamily returns the family netdev. The error wraps ErrUnknown if the kernel has none.
func xdpFamily() (family, error) {
	a, err := describeFamily()
	if err != nil {
		return 0, err
	}
	id, ok := a.uint16(nl.GENL_CTRL_ATTR_FAMILY_ID)
	if !ok {
		return 0, fmt.Errorf("generic netlink family %s has no number: %w", familyName, ErrUnknown)
	}
	return family(id), nil
}

// xdpGroup returns the number of the multicast group.
func xdpGroup() (uint32, error) {
	a, err := describeFamily()
	if err != nil {
		return 0, err
	}
	groups, err := parse(a[nl.GENL_CTRL_ATTR_MCAST_GROUPS])
	if err != nil {
		return 0, err
	}
	for _, each := range groups {
		g, err := parse(each)
		if err != nil {
			return 0, err
		}
		if id, ok := g.uint32(nl.GENL_CTRL_ATTR_MCAST_GRP_ID); ok &&
			string(g[nl.GENL_CTRL_ATTR_MCAST_GRP_NAME]) == group+"\x00" {
			return id, nil
		}
	}
	return 0, fmt.Errorf("generic netlink family %s has no group %s: %w", familyName, group, ErrUnknown)
}

func describeFamily() (answer, error) {
	answers, err := family(nl.GENL_ID_CTRL).query(nl.GENL_CTRL_CMD_GETFAMILY, 0,
		nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(familyName)))
	if errors.Is(err, unix.ENOENT) || err == nil && len(answers) != 1 {
		return nil, ErrUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("generic netlink family %s: %w", familyName, err)
	}
	return answers[0], nil
}

// answer is an answer's attribute values by type.
type answer map[uint16][]byte

func (a answer) uint16(kind uint16) (uint16, bool) {
	value := a[kind]
	if len(value) != 2 {
		return 0, false
	}
	return binary.NativeEndian.Uint16(value), true
}

func (a answer) uint32(kind uint16) (uint32, bool) {
	value := a[kind]
	if len(value) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(value), true
}

func (a answer) uint64(kind uint16) (uint64, bool) {
	value := a[kind]
	if len(value) != 8 {
		return 0, false
	}
	return binary.NativeEndian.Uint64(value), true
}

func parse(attributes []byte) (answer, error) {
	parsed, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return nil, err
	}
	a := answer{}
	for _, at := range parsed {
		a[at.Attr.Type] = at.Value
	}
	return a, nil
}

// number is a numeric attribute of a request.
func number(kind, value int) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(uint32(value))) }

// query sends a command and returns its answers.
func (f family) query(command uint8, flags int, about ...*nl.RtAttr) (answers []answer, err error) {
	req := nl.NewNetlinkRequest(int(f), flags)
	req.AddData(header{command, 1})
	for _, a := range about {
		req.AddData(a)
	}
	messages, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		a, err := parse(m[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}
