/* Who may add to which job. */
#pragma once

#include "maps.h"

/* job_of returns a job, or NULL if there is none with the id. */
static __always_inline struct job *job_of(__u32 id)
{
	struct job *job = bpf_map_lookup_elem(&jobs, &id);

	return job && job->slots ? job : NULL;
}

/* bank_of returns a job's current bank. It stays valid, and the program may add
 * to it, until the program ends: see Aggregator.Swap for the other side. */
static __always_inline struct bank *bank_of(__u32 id)
{
	void *bank = bpf_map_lookup_elem(&banks, &id);
	__u32 zero = 0;

	return bank ? bpf_map_lookup_elem(bank, &zero) : NULL;
}

/* sender_of returns the admitted sender of a frame, or NULL if the frame's
 * sender is not admitted or the frame comes from another address. */
static __always_inline struct sender *sender_of(const struct ethernet *eth, const struct packet *p)
{
	struct sender_key key = {
		.job = bpf_ntohs(p->header.job),
		.sender = bpf_ntohs(p->header.sender),
	};
	struct sender *s = bpf_map_lookup_elem(&senders, &key);

	if (!s || s->ip != p->ip.src || s->mac[0] != eth->src[0] || s->mac[1] != eth->src[1] ||
	    s->mac[2] != eth->src[2])
		return NULL;
	return s;
}
