/* Admission of senders to jobs. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "maps.h"

/* job_of returns a job, or NULL if there is none with the id. */
static __always_inline struct job *job_of(__u32 id)
{
	struct job *job = bpf_map_lookup_elem(&jobs, &id);
	__u64 slots;

	if (!job)
		return NULL;
	slots = *(volatile __u32 *)&job->slots;
	if (!slots)
		return NULL;
	/* The loader writes slots last, so the other fields must be read after
	 * it. arm64 keeps that order only for reads whose address depends on
	 * the earlier read; adding a zero from it creates the dependency. */
	asm volatile("%0 &= 0" : "+r"(slots));
	return (void *)job + slots;
}

/* sender_of returns the admitted sender of a frame, or NULL if the frame's
 * sender is not admitted or the frame comes from another address or port. */
static __always_inline struct sender *sender_of(const struct ethernet *eth, const struct packet *p)
{
	struct sender_key key = {
		.job = bpf_ntohs(p->header.job),
		.sender = bpf_ntohs(p->header.sender),
	};
	__u32 *found = bpf_map_lookup_elem(&admissions, &key), index;
	struct sender *s;

	if (!found)
		return NULL;
	index = *(volatile __u32 *)found;
	s = bpf_map_lookup_elem(&senders, &index);
	/* The keys differ if the sender is being withdrawn and the entry
	 * already belongs to another. */
	if (!s || s->key.job != key.job || s->key.sender != key.sender || s->ip != p->ip.src ||
	    s->port != p->udp.src || s->mac[0] != eth->src[0] || s->mac[1] != eth->src[1] ||
	    s->mac[2] != eth->src[2])
		return NULL;
	return s;
}
