/* Frames between hosts. The program forwards only frames that the bridge of its
 * ports would simply forward, and leaves all others to the bridge, which
 * floods, learns that a host has moved, and handles VLANs. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "maps.h"

/* route_of returns the port of the host with an address, or 0. */
static __always_inline __u32 route_of(const __u16 *address)
{
	__u64 mac = 0;
	__u32 *port;

	__builtin_memcpy(&mac, address, 6);
	port = bpf_map_lookup_elem(&routes, &mac);
	return port ? *port : 0;
}

/* forward handles a Libra frame between hosts. A port that does not support XDP
 * transmission is not in the map of ports, so its frames also pass to the
 * bridge. */
static __always_inline int forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 from = ctx->ingress_ifindex, to;
	struct ethernet *eth = data;

	if ((void *)(eth + 1) > end || eth->proto == bpf_htons(ETHER_VLAN))
		goto pass;
	if (route_of(eth->src) != from)
		goto pass; /* unknown or moved: the bridge must see the frame */
	to = route_of(eth->dst);
	if (!to || to == from || bpf_redirect_map(&ports, to, XDP_PASS) != XDP_REDIRECT)
		goto pass;
	COUNT(forwarded);
	return XDP_REDIRECT;
pass:
	COUNT(passed);
	return XDP_PASS;
}
