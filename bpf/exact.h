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
	__u64 negative = n >> 63;
	__u64 m = ((__u64)n ^ negative) - negative, rest;
	__u64 biased = 127 + 63 + exp, zero = (m - 1) >> 63 & ~m >> 63;

	/* Normalise: BPF has no instruction that counts leading zeros. A step
	 * shifts by 2^log if so many upper bits are zero: then they minus 1 is
	 * negative. */
#pragma unroll
	for (int log = 5; log >= 0; log--) {
		__u64 upper = m >> (64 - (1 << log)), shift;

		FORGET(upper);
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

/* Two or four numbers of a frame in one word, each in the low bits of a half.
 * Adding 2^31 - limit to both halves sets the top bit of those that are not
 * below the limit, without a carry from one to the other. */
#define HALVES(x) ((__u64)(x) << 32 | (__u64)(x))
#define TOP_BITS HALVES(1U << 31)
#define BELOW(limit) HALVES((1U << 31) - (__u32)(limit))

/* Loads eight bytes from an offset of a stripe in one instruction. In C, clang
 * would take them together from smaller loads, because a stripe is aligned to
 * four bytes only. */
#define LOAD64(s, offset)                                                          \
	({                                                                         \
		__u64 x__;                                                         \
		asm volatile("%0 = *(u64 *)(%1 + %2)"                              \
			     : "=r"(x__)                                           \
			     : "r"(s), "i"(offset)                                 \
			     : "memory");                                          \
		bpf_be64_to_cpu(x__);                                              \
	})

/* What survey finds, beside the number of pairs in the lower bits. */
#define PAIR_COUNT 0xffff
#define BAD_MASK (1 << 16) /* a mask has bits beyond the lanes */
#define PLAIN (1 << 17)

/* survey counts the pairs of a frame and tells whether they are plain: finite,
 * within the job's slots, and below half the range, so that adding them to sums
 * below half the range cannot overflow. If not, diagnose has to look.
 *
 * It zeroes unused lanes, so that neither it nor what follows has to look at
 * masks: adding 0 to a slot is adding nothing. (The answer to the frame has no
 * room for them, or has them zeroed.)
 *
 * Like the other functions that go through a frame's stripes it is global: the
 * verifier checks it once, for any number of stripes, instead of once for each
 * number. */
__noinline __u32 survey(struct xdp_md *ctx, __u32 l3, const struct job *job)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	__u64 below_half, seen = 0;
	const __u64 *below_slots;
	__u32 n, found = 0;
	struct stripe *s;

	if (!p || !job)
		return 0;
	below_half = BELOW((EXPONENT_LIMIT(job->exp) - 1) << 23);
	below_slots = job->below_slots[p->header.flags & FLAG_DENSE ? 1 : 0];
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		__u32 mask;
		__u64 last;

		if (i >= n || (void *)(s + 1) > end)
			break;
		mask = bpf_ntohl(s->mask);
		if (mask != LANE_MASK) {
			found |= mask & ~LANE_MASK ? BAD_MASK : 0;
			clear_unused(s, mask);
		}
		found += bits_set(mask);
#pragma unroll
		for (int k = 0; k < LANES / 2; k++) {
			__u64 two = LOAD64(s, offsetof(struct stripe, bits[2 * k]));

			seen |= (two & ~TOP_BITS) + below_half;
			FORGET(seen); /* or clang gathers terms and spills them */
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
	return found | (seen & TOP_BITS ? 0 : PLAIN);
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
