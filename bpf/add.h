/* Adding a frame to a bank: wholly or not at all. The caller holds the job's
 * lock. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "budget.h"
#include "exact.h"
#include "filter.h"
#include "fixed.h"
#include "lut.h"
#include "survey.h"

/* What is known of a HOT frame without the job's lock. */
struct judged {
	__u32 seq;
	__u32 flags;
	__u32 found; /* by count_pairs and survey */
	__u64 fresh; /* refusal if it was not applied before, or 0 */
	__u64 again; /* refusal if it was applied before, or 0 */
};

/* is_surveyed returns whether survey checks a frame's pairs. For "exact"
 * arithmetic it does if the sums are requested, since the answer to a
 * duplicate, of which nothing is added, also contains them; and after a frame
 * whose pairs had to be subtracted again, so that the frames of a sender
 * without budget are not added first. */
static __always_inline __u32 is_surveyed(const struct job *job, const struct sender *sender,
					 __u32 flags)
{
	return job->arithmetic != EXACT || flags & FLAG_WANT_SUM || sender->wary;
}

/* add adds all pairs of a frame to a bank, or returns the refusal of the first
 * that cannot be added, or THROTTLED: then no sum has changed. */
static __always_inline __u64 add(struct xdp_md *ctx, __u32 l3, const struct judged *f,
				 struct job *job, struct sender *sender, __u32 bank)
{
	__u64 why;

	switch (job->arithmetic) {
	case FIXED:
		job->saturated += add_fixed(ctx, l3, job->last_page, bank);
		return 0;
	case LUT:
		job->saturated += add_lut(ctx, l3, job->last_page, bank);
		return 0;
	}
	if (f->found & PLAIN) {
		sender->wary = add_exact(ctx, l3, job, bank);
		if (!sender->wary)
			return 0;
		take_exact(ctx, l3, job, bank);
		if (!pay_budget(sender))
			return THROTTLED;
		why = survey(ctx, l3, job) ? 0 : diagnose(ctx, l3, job);
		if (why)
			return why;
	}
	why = add_carefully(ctx, l3, job, bank);
	if (why)
		remember_refusal(sender, f->seq, why);
	return why;
}
