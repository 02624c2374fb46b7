// SPDX-License-Identifier: Apache-2.0

// Package testbed builds a small network inside one Linux machine: a switch, or several, and hosts,
// each in its own network namespace, connected by veth pairs.
//
//	switch namespace                        host namespaces
//	+---------------------+
//	| br0 10.77.0.1       |
//	|   port0 ------------------ veth ----- host0 10.77.0.2
//	|   port1 ------------------ veth ----- host1 10.77.0.3
//	|   ...               |
//	+---------------------+
//
// There may be more switches, each joined by a cable to one before it. Without further programs a
// switch is an ordinary learning bridge with its own address; an XDP program attached to its ports
// sees every frame that a host sends.
//
// The namespaces are anonymous: nothing appears in /run/netns, and the kernel removes them and
// their interfaces with the last descriptor and process that holds them. So a killed process leaves
// nothing behind. The bed is isolated: none of its namespaces is connected to the machine's
// network, so its addresses cannot clash.
//
// Building a bed requires CAP_SYS_ADMIN (namespaces) and CAP_NET_ADMIN (interfaces), and no tools:
// no iproute2, no ethtool.
package testbed
