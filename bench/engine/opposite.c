//go:build ignore
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The other end of the cable in every test: what meets the frames that the
 * tested program sends, and what makes the frames that it is to receive. It is
 * the same for all baselines, so that their figures differ by what they do. */

#include "../../bpf/frame.h"

/* Set before loading, in network byte order. */
volatile const __be16 test_port;      /* UDP source and destination port */
volatile const __u16 tested_mac[3];   /* the tested end */
volatile const __u16 opposite_mac[3]; /* this end */
volatile const __be32 tested_ip;
volatile const __be32 opposite_ip;

/* Frames that arrived from the tested program, each CPU on its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

/* counted returns the IPv4 header of a frame of the test after counting it, and
 * nothing for any other frame. */
static __always_inline struct ipv4 *counted(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	struct ipv4 *ip = (void *)(eth + 1);
	struct udp *udp = (void *)(ip + 1);
	__u32 zero = 0;
	__u64 *n;

	if ((void *)(udp + 1) > end || eth->proto != bpf_htons(ETHER_IPV4) ||
	    ip->proto != PROTO_UDP || udp->dst != test_port)
		return 0;
	n = bpf_map_lookup_elem(&arrived, &zero);
	if (!n)
		return 0;
	++*n;
	return ip;
}

/* Counts the frames of the test and drops them. */
SEC("xdp.frags")
int count_and_drop(struct xdp_md *ctx)
{
	return counted(ctx) ? XDP_DROP : XDP_PASS;
}

/* Sends the frames of the test back. The addresses are written, not swapped:
 * what comes back to the tested end is then the same frame whether the program
 * there turned the IP addresses round (a UDP socket), the MAC addresses only (a
 * program that bounces frames), or nothing. Source and destination change
 * places at most, so the checksums stay right. */
SEC("xdp.frags")
int reflect(struct xdp_md *ctx)
{
	struct ipv4 *ip = counted(ctx);
	struct ethernet *eth = (void *)(long)ctx->data;

	if (!ip || (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	eth->dst[0] = tested_mac[0];
	eth->dst[1] = tested_mac[1];
	eth->dst[2] = tested_mac[2];
	eth->src[0] = opposite_mac[0];
	eth->src[1] = opposite_mac[1];
	eth->src[2] = opposite_mac[2];
	ip->src = opposite_ip;
	ip->dst = tested_ip;
	return XDP_TX;
}

/* Run on frames that the kernel makes (BPF_F_TEST_XDP_LIVE_FRAMES), this puts
 * each of them on the cable. */
SEC("xdp")
int generate(void *ctx __attribute__((unused)))
{
	return XDP_TX;
}

/* Attached to the tested end where a baseline has no XDP program: veth wakes the
 * receiving end for frames sent by XDP_TX only if there is some program. */
SEC("xdp.frags")
int pass(void *ctx __attribute__((unused)))
{
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
