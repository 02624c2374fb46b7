/* Rounds of one bank: mode "acked". A group keeps the sums of a complete round
 * until all workers have told that they have them, in TAKEN frames. Then it is
 * zeroed, the next round begins, and all workers are told. A worker contributes
 * to that only when it has been told. A repeated TAKEN changes nothing, so these
 * frames do not pass the duplicate filter. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "broadcast.h"
#include "sync.h"

/* take notes that a sender has the result of a round, and sets the answer, or
 * returns the frame's refusal. The answer is a confirmation, SUMS_TO_ALL if it
 * is for all workers, or the positions of those that have the result. The
 * caller holds the job's lock. */
static __always_inline __u64 take(struct job *job, struct sender *sender, struct group *group,
				  __u32 bank, __u32 first, __u32 round, enum answer *answer)
{
	__u64 all = workers_of(job), own = own_bit(sender);
	__s32 ahead = round - group->round;

	if (ahead < 0) {
		count_duplicate(job, sender);
		return 0;
	}
	if (ahead || group->contributed != all)
		return REFUSAL(CODE_ROUND, 0, group->round);
	if (group->taken & own) {
		count_duplicate(job, sender);
		*answer = COVER_ACK;
		return 0;
	}
	group->taken |= own;
	if (group->taken != all) {
		*answer = NOTHING;
		return 0;
	}
	next_round(job, group, bank, first);
	*answer = SUMS_TO_ALL;
	return 0;
}

/* confirm answers a TAKEN frame whose round has ended. */
static __always_inline int confirm(struct xdp_md *ctx, __u32 l3, __u8 flags)
{
	struct taken *t = body_of(ctx, l3, TAKEN_LEN, sizeof(*t));
	__u64 sum;

	if (!t)
		return XDP_DROP;
	sum = set_type(header_of(t), TYPE_ACK, flags | FLAG_TAKEN);
	t->unused = 0;
	return seal(ctx, l3, TAKEN_LEN, sum + sum_words(t, sizeof(*t) / 4));
}
