/* The "exact" arithmetic: slots are int64 fixed point with a unit of 2^exp.
 * Go's internal/fixedpoint is its reference. */
#pragma once

#include "stripes.h"

/* A float32 is out of range from this biased exponent on: |value| >= 2^(63+exp)
 * is 127 + 63 + exp. The largest exp keeps it below 255, so that infinities and
 * NaNs are out of range too. */
#define EXPONENT_LIMIT(exp) (190 + (exp))

static __always_inline __s64 exponent_of(__u32 bits)
{
	return bits >> 23 & 0xff;
}

/* to_units converts float32 bits that are in range, to nearest, ties away from
 * zero. It has no branch: shift the 24-bit significand from the top of a word,
 * round in the last step, then apply the sign by xor and subtraction. */
static __always_inline __s64 to_units(__u32 bits, __s64 exp)
{
	__u64 significand = (__u64)(bits | 0x800000) << 40; /* shifts the rest out */
	__s64 shift = EXPONENT_LIMIT(exp) - 1 - exponent_of(bits);
	__s64 n = ((significand >> (shift & 63)) + 1) >> 1;
	__s64 sign = -(__s64)(bits >> 31), large = (shift - 64) >> 63;

	FORGET(large); /* or clang makes a branch of it */
	n &= large;    /* less than half a unit, subnormals included, is 0 */
	return (n ^ sign) - sign;
}

/* to_float converts to the nearest float32, ties to even. It has no branch, for
 * the verifier's sake: it would follow each through the rest of the frame. */
static __always_inline __u32 to_float(__s64 n, __s64 exp)
{
	__u64 negative = n >> 63;
	__u64 m = ((__u64)n ^ negative) - negative, rest;
	__u64 biased = 127 + 63 + exp, zero = (m - 1) >> 63 & ~m >> 63;

	/* Normalise: BPF has no instruction that counts leading zeros. A step
	 * shifts by 2^log if so many upper bits are zero: then they minus 1 is
	 * negative. */
#pragma unroll
	for (int log = 5; log >= 0; log--) {
		__u64 upper = m >> (64 - (1 << log)), shift;

		FORGET(upper); /* as above */
		shift = (upper - 1) >> 63 << log;
		m <<= shift;
		biased -= shift;
	}
	/* Round 64 bits to 24: half of the last place less one, plus the last
	 * bit kept, carries exactly where nearest-even rounds up. Halves are
	 * added, as the sum may not fit. A carry out of the significand ends up
	 * in the exponent, where it belongs. */
	rest = (1ULL << 39) - 1 + (m >> 40 & 1);
	m = (m >> 1) + (rest >> 1) + (m & rest & 1);
	return ((negative & 1) << 31 | (((biased - 1) << 23) + (m >> 39))) & (zero - 1);
}

/* pairs_valid tells whether all pairs are finite, in range and within the job's
 * slots. It collects sign bits instead of branching. */
__noinline int pairs_valid(struct xdp_md *ctx, __u32 l3, const struct job *job)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	__s64 limit, last, bad = 0;
	struct ranking r;
	struct stripe *s;
	__u32 n;

	if (!p || !job)
		return 0;
	limit = EXPONENT_LIMIT(job->exp) - 1;
	last = (__s64)job->slots - 1;
	r = ranking_of(p);
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		__u32 mask;

		if (i >= n || (void *)(s + 1) > end)
			break;
		mask = bpf_ntohl(s->mask);
		FORGET(r.lanes);
#pragma unroll
		for (__u32 lane = 0; lane < LANES; lane++) {
			__s64 used = -(__s64)(mask >> lane & 1);

			bad |= (limit - exponent_of(bpf_ntohl(s->bits[lane]))) & used;
			bad |= (last - rank_of(s->slots[lane], lane, r)) & used;
		}
	}
	return bad >= 0;
}

/* diagnose_pair ends the walk at a pair that is not valid. */
static long diagnose_pair(__u32 i, void *arg)
{
	struct walk *w = arg;
	__s64 e;

	w->position = i;
	if (!step(w))
		return 0;
	e = exponent_of(w->bits);
	if (e == 0xff)
		w->result = REFUSAL(CODE_NOT_FINITE, i, 0);
	else if (w->rank >= w->job->slots)
		w->result = REFUSAL(CODE_SLOT_RANGE, i, w->job->slots);
	else if (e >= EXPONENT_LIMIT(w->job->exp))
		w->result = REFUSAL(CODE_OVERFLOW, i, 0);
	return w->result != 0;
}

/* diagnose returns the refusal of the first pair, in stripe and lane order,
 * that is not valid, or 0. */
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
