/* The "exact" arithmetic: slots are int64 fixed point with a unit of 2^exp.
 * Go's internal/fixedpoint is its reference. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "tables.h"

/* A float32 is out of range from this biased exponent on: |value| >= 2^(63+exp)
 * is 127 + 63 + exp. The largest exp keeps it below 255, so that infinities and
 * NaNs are out of range too. */
#define EXPONENT_LIMIT(exp) (190 + (exp))

static __always_inline __s64 exponent_of(__u32 bits)
{
	return bits >> 23 & 0xff;
}

/* shift_of returns by how much one less than the distance of a significand at
 * the top of 64 bits is from its place, see to_units. */
static __always_inline __u64 shift_of(__u32 bits, __s64 exp)
{
	return EXPONENT_LIMIT(exp) - 1 - exponent_of(bits);
}

/* vanishes tells whether a value is less than half a unit, which is 0. Zero and
 * subnormals are. */
static __always_inline int vanishes(__u64 shift)
{
	return shift > 63;
}

/* to_units converts float32 bits that are in range and do not vanish, to
 * nearest, ties away from zero: shift the significand from the top of a word,
 * round in the last step, then apply the sign by xor and subtraction. */
static __always_inline __s64 to_units(__u32 bits, __u64 shift)
{
	__u64 significand = (__u64)(bits | 0x800000) << 40; /* shifts the rest out */
	__s64 sign = (__s64)((__u64)bits << 32) >> 63, n;

	/* In C, clang would limit a shift that is known to be below 64. */
	asm volatile("%0 >>= %1" : "+r"(significand) : "r"(shift));
	n = (significand + 1) >> 1;
	return (n ^ sign) - sign;
}

/* units_of converts float32 bits that are in range. */
static __always_inline __s64 units_of(__u32 bits, __s64 exp)
{
	__u64 shift = shift_of(bits, exp);

	return vanishes(shift) ? 0 : to_units(bits, shift);
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

/* add_exact_stripe adds the pairs of a stripe. It returns a number whose bit 1 is set
 * if a sum left the lower half of the range, -2^62 to 2^62-1. */
static __always_inline __u64 add_exact_stripe(const struct stripe *s, __u32 dense, __s64 exp,
					struct bank *bank)
{
	__u64 upper = 0;

#pragma unroll
	for (__u32 lane = 0; lane < LANES; lane++) {
		__u32 bits = bpf_ntohl(s->bits[lane]);
		__s64 *slot, sum;
		__u64 shift;

		FORGET(bits);
		shift = shift_of(bits, exp);
		if (vanishes(shift))
			continue;
		FORGET(shift);
		slot = slot_of(s, lane, dense, bank);
		sum = (__u64)*slot + to_units(bits, shift);
		*slot = sum;
		upper |= (sum >> 62) + 1; /* from -2 to 1, the lower half is -1 and 0 */
		FORGET(upper);
	}
	return upper;
}

/* add_exact adds all pairs to a bank. They must be plain, and unused lanes zero.
 * It tells whether all sums stayed in the lower half of the range: as plain
 * values are in the lower half, too, a sum that overflowed cannot have. */
__noinline int add_exact(struct xdp_md *ctx, __u32 l3, const struct job *job, struct bank *bank)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	__u64 upper = 0;
	struct stripe *s;
	__u32 n, dense;
	__s64 exp;

	if (!p || !job || !bank)
		return 0;
	exp = job->exp;
	dense = p->header.flags & FLAG_DENSE;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		/* Two bodies: a dense pair needs no multiplication. */
		upper |= dense ? add_exact_stripe(s, 1, exp, bank) : add_exact_stripe(s, 0, exp, bank);
	}
	return !(upper & 2);
}

/* take_exact_stripe takes back what add_exact_stripe added. */
static __always_inline void take_exact_stripe(const struct stripe *s, __u32 dense, __s64 exp,
					      struct bank *bank)
{
#pragma unroll
	for (__u32 lane = 0; lane < LANES; lane++) {
		__u32 bits = bpf_ntohl(s->bits[lane]);
		__u64 shift;

		FORGET(bits);
		shift = shift_of(bits, exp);
		if (vanishes(shift))
			continue;
		FORGET(shift);
		*slot_of(s, lane, dense, bank) -= to_units(bits, shift);
	}
}

/* take_exact takes back what add_exact added. The order does not matter: sums that
 * wrapped on the way there wrap on the way back. */
__noinline int take_exact(struct xdp_md *ctx, __u32 l3, const struct job *job, struct bank *bank)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	struct stripe *s;
	__u32 n, dense;
	__s64 exp;

	if (!p || !job || !bank)
		return 0;
	exp = job->exp;
	dense = p->header.flags & FLAG_DENSE;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		if (dense)
			take_exact_stripe(s, 1, exp, bank);
		else
			take_exact_stripe(s, 0, exp, bank);
	}
	return 0;
}
