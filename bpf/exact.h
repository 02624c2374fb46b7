/* The "exact" arithmetic: slots are int64 fixed point with a unit of 2^exp.
 * Go's internal/fixedpoint is its reference. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "tables.h"

/* A float32 is out of range from this biased exponent on: |value| >= 2^(63+exp)
 * is 127 + 63 + exp. The largest exp keeps it below 255, so that infinities and
 * NaNs are out of range too. A number below half of that, 2^(62+exp), is plain. */
#define EXPONENT_LIMIT(exp) (190 + (exp))

static __always_inline __s64 exponent_of(__u32 bits)
{
	return bits >> 23 & 0xff;
}

/* The distance of a plain number tells how much smaller it is than the largest: by
 * its exponent, from 0 up to FAR for the least that is half a unit or more. It is what
 * remains of reach_of less the number's bits, doubled to be without the sign, when
 * the fraction below EXPONENT_SHIFT is shifted out. A number that is too large has a
 * negative difference. */
#define EXPONENT_SHIFT 24
#define FAR 62

static __always_inline __u64 reach_of(__s64 exp)
{
	/* All ones below the exponent, so that no fraction borrows from it. */
	return ((__u64)(EXPONENT_LIMIT(exp) - 1) << EXPONENT_SHIFT) - 1;
}

/* with_sign returns n, or -n if the number with the bits is negative. */
static __always_inline __s64 with_sign(__u64 n, __u32 bits)
{
	__u64 negative = bits >> 31;

	FORGET(negative);
	negative = -negative;
	FORGET(negative);
	n ^= negative;
	FORGET(n);
	return n - negative;
}

/* magnitude_of converts a plain number to nearest, ties away from zero: shift the
 * significand from the top of a word, then round in the last step. */
static __always_inline __u64 magnitude_of(__u32 doubled, __u64 distance)
{
	__u64 n = (__u64)(doubled | 1 << EXPONENT_SHIFT) << 39; /* shifts the rest out */

	/* In C, clang would limit a shift that is known to be below 64. */
	asm volatile("%0 >>= %1" : "+r"(n) : "r"(distance));
	return (n + 2) >> 2;
}

/* units_of converts float32 bits that are in range. */
static __always_inline __s64 units_of(__u32 bits, __s64 exp)
{
	__u32 doubled = bits << 1;
	__s64 distance = (__s64)(reach_of(exp) - doubled) >> EXPONENT_SHIFT;

	if (distance > FAR)
		return 0;
	/* The upper half of the range: nothing to round. */
	if (distance < 0)
		return with_sign((__u64)(doubled | 1 << EXPONENT_SHIFT) << 39 >> 1, bits);
	return with_sign(magnitude_of(doubled, distance), bits);
}

/* to_float converts to the nearest float32, ties to even. It has no branch, for
 * the verifier's sake: it would follow each through the rest of the frame. */
static __always_inline __u32 to_float(__s64 n, __s64 exp)
{
	__u64 negative = n >> 63, biased = 127 + 62 + exp, upper, shift, nonzero;
	__u64 m = ((__u64)n ^ negative) - negative;

	m -= m >> 63; /* 2^63 has one bit too many, and 2^63 - 1 becomes the same float */
	nonzero = (__s64)-m >> 63;
	/* Normalise to 63 bits. A step shifts by 2^log if the 2^log upper bits
	 * are zero: then they minus 1 is negative. */
#pragma unroll
	for (int log = 5; log >= 3; log--) {
		upper = m >> (63 - (1 << log));
		FORGET(upper);
		shift = (upper - 1) >> 63 << log;
		m <<= shift;
		biased -= shift;
	}
	shift = 8 - byte_length[m >> 55 & 0xff];
	m <<= shift & 63;
	biased -= shift;
	/* Round 63 bits to 24: half of the last place less one, plus the last
	 * bit kept, carries exactly where nearest-even rounds up. A carry out of
	 * the significand ends up in the exponent, where it belongs. */
	m += (1ULL << 38) - 1 + (m >> 39 & 1);
	return (negative & 1) << 31 | (((biased - 1) << 23) + (m >> 39) & nonzero);
}

static __always_inline int overflows(__s64 a, __s64 b, __s64 sum)
{
	return ((a ^ sum) & (b ^ sum)) < 0;
}

static long add_pair(__u32 i, void *arg)
{
	struct walk *w = arg;
	__s64 units, sum, *slot;

	w->position = i;
	if (!step(w))
		return 0;
	slot = &w->bank->slots[w->rank % MAX_SLOTS];
	units = units_of(w->bits, w->job->exp);
	sum = (__u64)*slot + units;
	if (overflows(*slot, units, sum)) {
		w->result = REFUSAL(CODE_OVERFLOW, i, 0);
		return 1;
	}
	*slot = sum;
	return 0;
}

/* undo_pair takes a pair back. */
static long undo_pair(__u32 i, void *arg)
{
	struct walk *w = arg;

	w->position = i;
	if (step(w))
		w->bank->slots[w->rank % MAX_SLOTS] -= units_of(w->bits, w->job->exp);
	return 0;
}

/* add_carefully adds pair by pair until a sum overflows. Then it takes all back
 * and returns the refusal; otherwise 0. */
__noinline __u64 add_carefully(struct xdp_md *ctx, __u32 l3, const struct job *job,
			       struct bank *bank)
{
	struct walk w = { .ctx = ctx, .l3 = l3, .job = job, .bank = bank };

	if (!job || !bank)
		return 0;
	bpf_loop(PAIRS, add_pair, &w, 0);
	if (w.result)
		bpf_loop(w.position, undo_pair, &w, 0);
	return w.result;
}

/* What all lanes of a frame have in common. */
struct exact {
	volatile __u64 reach; /* on the stack, because registers are scarce */
	__u64 limit;          /* of a slot's place in the bank, in bytes */
	__u64 half;           /* of the range */
	__u64 beyond;         /* top bit: a number was not plain, or a sum left the lower half */
};

/* rank_beyond is what move_exact_stripe returns for a rank that is not the job's. From
 * a constant, clang would load it before each comparison that may lead here. */
static __always_inline int rank_beyond(void)
{
	int yes;

	asm volatile("%0 = 1" : "=r"(yes));
	return yes;
}

/* move_exact_stripe adds the pairs of a stripe, or takes back what it has added. It
 * leaves out numbers that are not plain, and ends at a rank that is not the job's; it
 * tells whether it did. Both depend on the frame alone, so what is taken back is what
 * was added. The order does not matter: sums that wrapped on the way there wrap on the
 * way back. */
static __always_inline int move_exact_stripe(const struct stripe *s, __u32 dense, int take,
					     const struct job *job, struct exact *e,
					     struct bank *bank)
{
	__u64 beyond = e->beyond, four = 0;

	FORGET(s);
#pragma unroll
	for (__u32 lane = 0; lane < LANES; lane++) {
		__u32 bits, doubled, slots;
		__u64 at, distance;
		__s64 *slot, sum;

		/* The slot's place in bytes: eight times the rank. */
		if (dense) {
			/* Four in a word, each shifted to its place at once. */
			if (lane % 4 == 0) {
				four = lane < LANES / 4 * 4 ?
					LOAD64(s, offsetof(struct stripe, slots) + 2 * lane) :
					(__u64)bpf_ntohl(*(__be32 *)&s->slots[lane]) << 32;
				FORGET(four);
			}
			at = lane % 4 == 3 ? four << 3 : four >> (45 - 16 * (lane % 4));
			FORGET(at);
			at &= (MAX_SLOTS - 1) << 3;
			if (__builtin_expect(at >= e->limit, 0))
				return rank_beyond();
		} else {
			/* Loaded anew: from each lane compared, the verifier would
			 * learn another least number of slots. */
			slots = *(volatile __u32 *)&job->slots;
			at = bpf_ntohs(s->slots[lane]) * LANES + lane;
			if (__builtin_expect(at >= slots, 0))
				return rank_beyond();
			FORGET(at);
			at = (at & (MAX_SLOTS - 1)) << 3;
		}
		asm volatile("%0 += %1" : "+r"(at) : "r"(bank));
		slot = (void *)at;

		bits = bpf_ntohl(s->bits[lane]);
		FORGET(bits);
		doubled = bits;
		asm volatile("%0 += %0" : "+w"(doubled)); /* clang would shift */
		distance = e->reach - doubled;
		if (!take)
			asm volatile("%0 |= %1" : "+r"(beyond) : "r"(distance));
		distance >>= EXPONENT_SHIFT;
		if (__builtin_expect(distance > FAR, 0))
			continue;
		sum = with_sign(magnitude_of(doubled, distance), take ? ~bits : bits) + *slot;
		*slot = sum;
		if (!take) {
			sum += e->half;
			asm volatile("%0 |= %1" : "+r"(beyond) : "r"(sum));
		}
	}
	e->beyond = beyond;
	return 0;
}

/* move_exact adds all pairs of a frame to a bank, or takes back what it has added.
 * Adding, it returns 0 if all were plain and all sums stayed in the lower half of the
 * range, -2^62 to 2^62-1: as plain numbers are in the lower half, too, a sum that
 * overflowed cannot have. If not, some pairs are added and some are not, and all must
 * be taken back. Unused lanes must be zero. */
static __always_inline __u32 move_exact(struct xdp_md *ctx, __u32 l3, const struct job *job,
					struct bank *bank, int take)
{
	struct exact e = { .half = 1ULL << 62 };
	struct packet *p;
	struct stripe *s;
	__u32 n, dense;
	void *end;
	int ended;

	p = packet_at(ctx, l3, &end);
	if (!p || !job || !bank)
		return 1;
	e.reach = reach_of(job->exp);
	e.limit = (__u64)job->slots << 3;
	FORGET(e.half);
	FORGET(e.limit);
	/* A job has slots. The verifier has to know, or it would learn it from some
	 * lanes and not from others, and go through the rest of the frame for each. */
	if (e.limit < 8)
		return 1;
	dense = p->header.flags & FLAG_DENSE;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		/* Two bodies: a dense pair needs no multiplication. */
		ended = dense ? move_exact_stripe(s, 1, take, job, &e, bank) :
				move_exact_stripe(s, 0, take, job, &e, bank);
		if (ended)
			return 1;
	}
	/* No comparison, for the verifier's sake: it would follow all values that
	 * lead to either outcome. */
	FORGET(e.beyond);
	return e.beyond >> 63;
}

__noinline __u32 add_exact(struct xdp_md *ctx, __u32 l3, const struct job *job, struct bank *bank)
{
	return move_exact(ctx, l3, job, bank, 0);
}

__noinline __u32 take_exact(struct xdp_md *ctx, __u32 l3, const struct job *job, struct bank *bank)
{
	return move_exact(ctx, l3, job, bank, 1);
}
