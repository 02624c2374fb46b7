/* SCALE frames: before each iteration of a job with "fixed" arithmetic, every
 * worker reports the exponent of its largest gradient, and all get the maximum.
 * A repeated report changes nothing, so these frames do not pass the duplicate
 * filter. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "apply.h"
#include "broadcast.h"

#define INFINITE_EXPONENT 0xff

/* The answer to a SCALE frame that is not refused. */
struct decision {
	__u8 made; /* 0: reports of other workers are missing */
	__u8 to_all;
	__u8 exponent;
};

/* decide applies a report, or returns its refusal. The caller holds the job's
 * lock. */
static __always_inline __u64 decide(struct job *job, struct sender *sender, __u32 iteration,
				    __u8 exponent, struct decision *d)
{
	__u64 all = ~0ULL >> (-job->workers & 63), own = 1ULL << (sender->position & 63);

	if (job->iteration && iteration == job->iteration - 1) {
		d->made = 1;
		d->exponent = job->previous;
		goto duplicate;
	}
	if (iteration != job->iteration)
		return REFUSAL(CODE_ROUND, 0, job->iteration);
	if (job->reported & own)
		goto duplicate;
	job->reported |= own;
	if (exponent > job->largest)
		job->largest = exponent;
	if (job->reported != all)
		return 0;
	d->made = 1;
	d->to_all = 1;
	d->exponent = job->largest;
	job->previous = job->largest;
	job->largest = 0;
	job->reported = 0;
	job->iteration++;
	job->scales++;
	return 0;
duplicate:
	count_duplicate(job, sender);
	return 0;
}

/* acknowledge_scale answers with a decision. The frame's report already has the
 * iteration. */
static __always_inline int acknowledge_scale(struct xdp_md *ctx, __u32 l3, const struct decision *d)
{
	struct report *r = body_of(ctx, l3, SCALE_LEN, sizeof(*r));
	__u64 sum;

	if (!r)
		return XDP_DROP;
	sum = set_type(header_of(r), TYPE_ACK, FLAG_SUM | FLAG_SCALE | (d->to_all ? FLAG_ALL : 0));
	r->exponent = d->exponent;
	__builtin_memset(r->unused, 0, sizeof(r->unused));
	return seal(ctx, l3, SCALE_LEN, sum + sum_words(r, sizeof(*r) / 4));
}
