/* Applying a HOT frame under the job's lock. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "add.h"
#include "filter.h"
#include "lock.h"
#include "reply.h"
#include "touch.h"

/* The answer to a frame that is not refused. */
enum answer {
	PLAIN_ACK,
	COVER_ACK,
	NOTHING, /* no answer until a later frame requests one, or until the round is complete */
	SUMS, /* the sums have replaced the frame's values */
	SUMS_TO_ALL,
};

/* apply_new applies a frame that was not applied before, or returns its
 * refusal: then it has changed no sum. */
static __always_inline __u64 apply_new(struct xdp_md *ctx, __u32 l3, const struct judged *f,
				       struct job *job, struct sender *sender, __u32 bank)
{
	__u64 why = f->fresh ? f->fresh : add(ctx, l3, f, job, sender, bank);
	struct tally *tally = &job->tallies[bank % BANKS];
	__u32 pairs = f->found & PAIR_COUNT;

	if (why)
		return why;
	if (job->last_page)
		touch(ctx, l3, bank);
	*place_of(sender, f->seq) = f->seq;
	tally->frames++;
	tally->pairs += pairs;
	job->applied++;
	job->pairs += pairs;
	sender->applied++;
	sender->pairs += pairs;
	return 0;
}

static __always_inline void count_duplicate(struct job *job, struct sender *sender)
{
	job->duplicates++;
	sender->duplicates++;
}

/* apply applies a frame of a job without rounds, unless it was applied before,
 * and sets its answer; or it returns the frame's refusal. The caller holds the
 * job's lock. */
static __always_inline __u64 apply(struct xdp_md *ctx, __u32 l3, const struct judged *f,
				   struct job *job, struct sender *sender, __u32 bank,
				   enum answer *answer)
{
	__u64 entry = *place_of(sender, f->seq), why;
	int fresh = is_fresh(entry, f->seq);

	if (fresh) {
		why = apply_new(ctx, l3, f, job, sender, bank);
		if (why)
			return why;
	} else {
		why = former_refusal(entry, f->seq);
		if (why)
			return why;
		if (f->again)
			return f->again;
		count_duplicate(job, sender);
	}
	if (f->flags & FLAG_WANT_SUM) {
		put_sums(ctx, l3, job, bank);
		*answer = SUMS;
	} else if (fresh && f->flags & FLAG_QUIET &&
		   was_applied(*place_of(sender, f->seq - 1), f->seq - 1)) {
		*answer = NOTHING;
	} else if (f->flags & (FLAG_QUIET | FLAG_COVER)) {
		*answer = COVER_ACK;
	}
	return 0;
}
