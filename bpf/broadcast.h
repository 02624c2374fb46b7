/* Answers to all senders of a job.
 *
 * They go to a multicast address of the job, so that a switch behind a port
 * delivers them to all its hosts, by a redirect to all ports of a set. Each job
 * has its own set, which the loader maintains: the ports of the job's senders,
 * including the frame's ingress port. Other jobs' senders get nothing. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "reply.h"

#define ALL_SENDERS 0xffff
#define ALL_OF(job) (239U << 24 | 76U << 16 | (job)) /* RFC 2365 */

/* from_all rewrites a frame as if all senders of its job had sent it, so that
 * its answer, with the result of a round, goes to all of them. */
static __always_inline int from_all(struct xdp_md *ctx, __u32 l3, __u32 round)
{
	struct ethernet *eth = (void *)(long)ctx->data;
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);

	if (!p)
		return -1;
	eth->src[0] = bpf_htons(0x0100); /* RFC 1112 */
	eth->src[1] = bpf_htons(0x5e00 | 76);
	eth->src[2] = p->header.job;
	p->ip.src = bpf_htonl(ALL_OF(bpf_ntohs(p->header.job)));
	p->udp.src = p->udp.dst;
	p->header.sender = bpf_htons(ALL_SENDERS);
	p->header.seq = bpf_htonl(round);
	return 0;
}

/* to_all sends an answer out of all ports of a job, or drops and counts it if
 * the job is being removed. */
static __always_inline int to_all(__u32 job)
{
	void *set = bpf_map_lookup_elem(&port_sets, &job);

	if (set)
		return bpf_redirect_map(set, 0, BPF_F_BROADCAST);
	COUNT(unanswered);
	return XDP_DROP;
}
