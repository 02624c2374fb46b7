// SPDX-License-Identifier: Apache-2.0

package link

import "net/netip"

// OpenNetUDP opens a link on a socket of package net, which systems other than Linux
// use.
func OpenNetUDP(local netip.AddrPort) (Link, error) { return openUDP(local, openNetSocket) }
