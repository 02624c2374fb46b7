/* Validation of a frame by packet and job configuration alone, before it takes
 * the job's lock. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "exact.h"

/* Two or four numbers of a frame in one word, each in the low bits of a half.
 * Adding 2^31 - limit to both halves sets the top bit of each that is not below
 * the limit, without a carry between them. The loader prepares the addends, see
 * struct job. */
#define HALVES(x) ((__u64)(x) << 32 | (__u64)(x))
#define TOP_BITS HALVES(1U << 31)

/* Findings about a frame, above the number of pairs in the lower bits. */
#define PAIR_COUNT 0xffff
#define BAD_MASK (1 << 16) /* a stripe has a page in a job of one */
#define PLAIN (1 << 17)

/* count_pairs counts the pairs of a frame, of a job whose last page it is given,
 * and reports a page where the job has only one. It is separate
 * from survey, as a short loop for frames whose pairs need no check.
 *
 * It zeroes unused lanes, so that later functions can ignore masks: adding 0
 * does not change a slot. (The answer to the frame leaves them out or has them
 * zeroed.)
 *
 * Like the other functions that walk a frame's stripes, it is global: the
 * verifier checks it once for any number of stripes, not once for each
 * number. */
__noinline __u32 count_pairs(struct xdp_md *ctx, __u32 l3, __u32 last_page)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	struct stripe *s;
	__u32 n, found, pages = 0;

	if (!p)
		return 0;
	n = stripe_count(body_length(p));
	found = n * LANES;
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		__u32 mask;

		if (i >= n || (void *)(s + 1) > end)
			break;
		mask = bpf_ntohl(s->mask);
		pages |= mask;
		mask &= LANE_MASK;
		if (mask == LANE_MASK)
			continue;
		found -= LANES - bits_set(mask);
		clear_unused(s, mask);
	}
	return pages & ~LANE_MASK && !last_page ? found | BAD_MASK : found;
}

/* survey returns PLAIN if all pairs of a frame are plain: within the job's
 * slots, and finite unless they are integers. If not, it returns 0, and
 * diagnose finds the reason.
 *
 * In "exact" arithmetic, plain numbers are also below half the range, so that
 * adding them to sums below half the range cannot overflow. There add_exact
 * detects numbers that are not plain while it adds, and most frames are treated
 * as plain without a survey. */
__noinline __u32 survey(struct xdp_md *ctx, __u32 l3, const struct job *job)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	__u64 below_limit, seen = 0;
	__u32 n, dense, last_page;
	struct stripe *s;

	if (!p || !job)
		return 0;
	below_limit = job->below_limit;
	last_page = job->last_page;
	dense = p->header.flags & FLAG_DENSE ? 1 : 0;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		const __u64 *below_slots;
		__u32 page;
		__u64 last;

		if (i >= n || (void *)(s + 1) > end)
			break;
		page = page_number(s);
		if (page > last_page)
			return 0;
		below_slots = job->below_slots[dense][1 - is_before(page, last_page)];
#pragma unroll
		for (int k = 0; k < LANES / 2; k++) {
			__u64 two = LOAD64(s, offsetof(struct stripe, bits[2 * k]));

			seen |= (two & ~TOP_BITS) + below_limit;
			FORGET(seen); /* otherwise clang gathers terms and spills them */
		}
#pragma unroll
		for (int k = 0; k < LANES / 4; k++) {
			__u64 four = LOAD64(s, offsetof(struct stripe, slots[4 * k]));

			seen |= (four >> 16 & HALVES(0xffff)) + below_slots[2 * k];
			seen |= (four & HALVES(0xffff)) + below_slots[2 * k + 1];
			FORGET(seen);
		}
		last = bpf_ntohl(*(__be32 *)&s->slots[LANES - 2]);
		seen |= ((last & 0xffff0000) << 16 | (last & 0xffff)) + below_slots[LANES / 2 - 1];
	}
	return seen & TOP_BITS ? 0 : PLAIN;
}

/* diagnose_pair ends the walk at an invalid pair. */
static long diagnose_pair(__u32 i, void *arg)
{
	struct walk *w = arg;
	__u8 arithmetic = w->job->arithmetic;
	__s64 e;

	w->position = i;
	if (!step(w))
		return 0;
	e = exponent_of(w->bits);
	if (arithmetic != FIXED && e == 0xff)
		w->result = REFUSAL(CODE_NOT_FINITE, i, 0);
	else if (w->rank >= w->job->slots)
		w->result = REFUSAL(CODE_SLOT_RANGE, i, w->job->slots);
	else if (arithmetic == EXACT && e >= EXPONENT_LIMIT(w->job->exp))
		w->result = REFUSAL(CODE_OVERFLOW, i, 0);
	return w->result != 0;
}

/* diagnose returns the refusal of the first invalid pair, in stripe and lane
 * order, or 0. */
__noinline __u64 diagnose(struct xdp_md *ctx, __u32 l3, const struct job *job)
{
	struct walk w = { .ctx = ctx, .l3 = l3, .job = job };

	if (job)
		bpf_loop(PAIRS, diagnose_pair, &w, 0);
	return w.result;
}

static long diagnose_rank(__u32 i, void *arg)
{
	struct walk *w = arg;

	w->position = i;
	if (step(w) && w->rank >= w->job->slots)
		w->result = REFUSAL(CODE_SLOT_RANGE, i, w->job->slots);
	return w->result != 0;
}

/* diagnose_ranks is diagnose for ranks only. */
__noinline __u64 diagnose_ranks(struct xdp_md *ctx, __u32 l3, const struct job *job)
{
	struct walk w = { .ctx = ctx, .l3 = l3, .job = job };

	if (job)
		bpf_loop(PAIRS, diagnose_rank, &w, 0);
	return w.result;
}
