// SPDX-License-Identifier: Apache-2.0

// Package neigh finds the Ethernet address that a frame for an IP address must
// carry: the kernel's routing table names the next hop, its neighbour table
// the next hop's MAC. A missing entry is resolved by the kernel itself (ARP or
// neighbour discovery), which one small datagram provokes, so that no
// privilege is needed.
//
// Programs that build frames in user space need this, because AF_XDP leaves the
// kernel's IP stack out. It exists on Linux only.
package neigh
