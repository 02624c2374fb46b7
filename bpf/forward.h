/* Frames between hosts. The program sends on what the bridge that its ports
 * belong to would send on without a second thought, and leaves all others to the
 * bridge: it floods, learns where a host has moved to, and knows of VLANs. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "maps.h"

/* route_of returns the port behind which the host with an address is, or 0. */
static __always_inline __u32 route_of(const __u16 *address)
{
	__u64 mac = 0;
	__u32 *port;

	__builtin_memcpy(&mac, address, 6);
	port = bpf_map_lookup_elem(&routes, &mac);
	return port ? *port : 0;
}

/* forward decides about a Libra frame between hosts. A port that cannot transmit
 * for XDP is not in the map of ports, so its frames pass to the bridge as well. */
static __always_inline int forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 from = ctx->ingress_ifindex, to;
	struct ethernet *eth = data;

	if ((void *)(eth + 1) > end || eth->proto == bpf_htons(ETHER_VLAN))
		goto pass;
	if (route_of(eth->src) != from)
		goto pass; /* unknown, or it has moved: the bridge has to see this */
	to = route_of(eth->dst);
	if (!to || to == from || bpf_redirect_map(&ports, to, XDP_PASS) != XDP_REDIRECT)
		goto pass;
	COUNT(forwarded);
	return XDP_REDIRECT;
pass:
	COUNT(passed);
	return XDP_PASS;
}
