/* Who may add to which job. */
#pragma once

#include "maps.h"

/* job_of returns a job, or NULL if there is none with the id. */
static __always_inline struct job *job_of(__u32 id)
{
	struct job *job = bpf_map_lookup_elem(&jobs, &id);

	return job && job->slots ? job : NULL;
}

/* leave_bank says that the program is done with a bank. */
static __always_inline void leave_bank(struct bank *bank)
{
	/* Asking for the old value makes the addition a full barrier on every
	 * architecture, so that what was added is visible before. */
	__u64 *left = &bank->left;
	__u64 old = __sync_fetch_and_add(left, 1);

	asm volatile("" : : "r"(old));
}

/* enter_bank returns a job's current bank, to which the program may add until
 * leave_bank, or NULL if there is none.
 *
 * The program announces itself first and looks again whether the bank is still
 * current; Aggregator.Swap makes another bank current first and then looks who
 * has announced himself. With a full barrier between the two steps on both
 * sides, either the program sees the swap or Swap sees the program (Dekker's
 * argument). So Swap need not wait for an RCU grace period, which takes eight
 * to sixteen milliseconds on a kernel with 250 ticks a second. */
static __always_inline struct bank *enter_bank(__u32 id, const struct job *job)
{
#pragma clang loop unroll(full)
	for (int attempt = 0; attempt < 3; attempt++) {
		__u32 current = *(const volatile __u32 *)&job->current & 1;
		__u32 key = id * BANKS + current, zero = 0;
		void *map = bpf_map_lookup_elem(&banks, &key);
		struct bank *bank = map ? bpf_map_lookup_elem(map, &zero) : NULL;
		__u64 old;

		if (!bank)
			return NULL;
		old = __sync_fetch_and_add(&bank->entered, 1);
		asm volatile("" : : "r"(old));
		if ((*(const volatile __u32 *)&job->current & 1) == current)
			return bank;
		leave_bank(bank);
	}
	return NULL;
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
