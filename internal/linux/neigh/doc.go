// SPDX-License-Identifier: Apache-2.0

// Package neigh finds the Ethernet address that a frame for an IP address must carry: the kernel's
// routing table names the next hop, its neighbour table the next hop's MAC. The kernel resolves a
// missing entry (ARP or neighbour discovery) when the package sends a small datagram, so no
// privilege is needed. A stale entry is used, as by the kernel, and like there that makes the
// kernel check it; [Again] follows what comes of that, and of all other changes.
//
// Programs that build frames in user space need this, because AF_XDP bypasses the kernel's IP
// stack. It exists only on Linux.
package neigh
