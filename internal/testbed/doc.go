// SPDX-License-Identifier: Apache-2.0

// Package testbed builds a small network inside one Linux machine: a switch and
// its hosts, each in a network namespace of its own, joined by veth pairs.
//
//	switch namespace                        host namespaces
//	+---------------------+
//	| br0 10.77.0.1       |
//	|   port0 ------------------ veth ----- host0 10.77.0.2
//	|   port1 ------------------ veth ----- host1 10.77.0.3
//	|   ...               |
//	+---------------------+
//
// Without further programs the switch is an ordinary learning bridge with an
// address of its own; an XDP program attached to its ports sees every frame
// that a host sends.
//
// The namespaces are anonymous: nothing appears in /run/netns, and the kernel
// removes them together with their interfaces when the last descriptor and
// process that holds them is gone. A process that is killed outright therefore
// leaves nothing behind. Nothing gets out of the bed either: no namespace of it
// is connected to the machine's own network, so the addresses cannot clash.
//
// Building a bed takes CAP_SYS_ADMIN (namespaces) and CAP_NET_ADMIN
// (interfaces), nothing else: no iproute2, no ethtool.
package testbed
