// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/libra-ina/libra/wire"
)

// Source describes the frames of a capture.
type Source struct {
	// Process is the process's role in the cluster: "worker 1" or "ps".
	Process string `json:"process"`
	// PID is its process ID as the reader of the capture sees it.
	PID int `json:"pid"`
	// Backend is "afxdp" or "udp".
	Backend string `json:"backend"`
	// Interface of the frames; empty if the udp backend does not know it.
	Interface string `json:"interface,omitempty"`
	// Address and port of the link.
	Address netip.AddrPort `json:"address"`
	// Rebuilt means that headers were built around a socket's payloads.
	Rebuilt bool `json:"rebuilt,omitempty"`
}

func (s Source) String() string {
	on := ""
	if s.Interface != "" {
		on = " on " + s.Interface
	}
	return fmt.Sprintf("%s (process %d, %s%s, %v)", s.Process, s.PID, s.Backend, on, s.Address)
}

// comment is the text in the file's section header. It says to a reader of the file alone how to
// decode it.
func (s Source) comment() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Frames of Libra %v. ", s)
	port := ""
	if p := s.Address.Port(); p != wire.DefaultPort {
		port = fmt.Sprintf(" -o libra.port:%d", p)
	}
	fmt.Fprintf(&b, "Dissector: wire/libra.lua in github.com/libra-ina/libra. tshark -X lua_script:wire/libra.lua%s -r FILE; "+
		"or copy it into Wireshark's personal Lua plugins folder (Help > About Wireshark > Folders)", port)
	if port != "" {
		fmt.Fprintf(&b, " and set the preference libra.port to %d", s.Address.Port())
	}
	b.WriteString(".")
	if s.Rebuilt {
		b.WriteString(" The payloads are those of a UDP socket; Ethernet, IP and UDP headers were built around them.")
	}
	return b.String()
}
