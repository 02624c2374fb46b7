/* Which frames are Libra's? */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "frame.h"

enum class {
	FOREIGN, /* not Libra's */
	IPV4,    /* to the Libra port over IPv4 */
	IPV6,    /* to the Libra port over IPv6 */
};

/* classify checks only headers, and finds the IP header's offset. A frame that
 * is too short is foreign. So are frames with fragments, IPv4 options or IPv6
 * extension headers, which Libra never sends. */
static __always_inline enum class classify(struct xdp_md *ctx, __be16 port, __u32 *l3)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	__be16 proto;

	if ((void *)(eth + 1) > end)
		return FOREIGN;
	*l3 = sizeof(*eth);
	proto = eth->proto;
	if (proto == bpf_htons(ETHER_VLAN)) {
		struct vlan *vlan = data + sizeof(*eth);

		if ((void *)(vlan + 1) > end)
			return FOREIGN;
		*l3 += sizeof(*vlan);
		proto = vlan->proto;
	}
	if (proto == bpf_htons(ETHER_IPV4)) {
		struct ipv4 *ip = data + *l3;
		struct udp *udp = (void *)(ip + 1);

		if ((void *)(udp + 1) > end || ip->version_ihl != IPV4_PLAIN_HEADER ||
		    ip->proto != PROTO_UDP || ip->fragment & bpf_htons(IPV4_FRAGMENT) ||
		    udp->dst != port)
			return FOREIGN;
		return IPV4;
	}
	if (proto == bpf_htons(ETHER_IPV6)) {
		struct ipv6 *ip = data + *l3;
		struct udp *udp = (void *)(ip + 1);

		if ((void *)(udp + 1) > end || ip->version_class >> 4 != 6 ||
		    ip->next != PROTO_UDP || udp->dst != port)
			return FOREIGN;
		return IPV6;
	}
	return FOREIGN;
}
