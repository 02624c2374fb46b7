/* The "exact" arithmetic: slots are int64 fixed point with a unit of 2^exp.
 * Go's internal/num/fixedpoint is its reference. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "tables.h"

/* A float32 is out of range from this biased exponent on: |value| >= 2^(63+exp)
 * is 127 + 63 + exp. The largest exp keeps it below 255, so that infinities and
 * NaNs are also out of range. A number below half of that, 2^(62+exp), is
 * plain. */
#define EXPONENT_LIMIT(exp) (190 + (exp))

static __always_inline __s64 exponent_of(__u32 bits)
{
	return bits >> 23 & 0xff;
}

/* The distance of a number is the shift that turns its significand, at the top
 * of a word, into units, except for the last step, which rounds. It is the
 * difference of exponents: from 1, for the largest plain numbers, to FAR, for
 * half a unit; 0 or less for numbers that are not plain. */
#define FAR 63

/* units_of converts float32 bits that are in range to nearest, ties away from zero. */
static __always_inline __s64 units_of(__u32 bits, __s64 exp)
{
	__s64 distance = EXPONENT_LIMIT(exp) - 1 - exponent_of(bits);
	__u64 negative = -(__u64)(bits >> 31);
	__u64 n = (__u64)(bits | 1 << 23) << 40; /* shifts the rest out */

	if (distance > FAR)
		return 0;
	n = ((n >> distance) + 1) >> 1;
	return (n ^ negative) - negative;
}

/* For plain numbers, one subtraction gives distance and sign: reach_of minus
 * the doubled bits of the number. Above the fraction, the difference contains
 * the distance plus NEARER. A set sign bit, doubled, is 2^32, which makes the
 * difference negative but does not change its lower half. In that half, numbers
 * that are not plain, or round to zero, give less than plain ones: exp is from
 * -100 to 60, so for any exponent NEARER plus the distance is from 26 to 441,
 * and wraps at 256. */
#define EXPONENT_SHIFT 24
#define NEARER (256 - 1 - FAR)
#define NEAREST ((NEARER + 1U) << EXPONENT_SHIFT) /* the least difference of a plain number */

static __always_inline __u64 reach_of(__s64 exp)
{
	/* All ones below the exponent, so that no fraction borrows from it. */
	return ((__u64)(EXPONENT_LIMIT(exp) + NEARER) << EXPONENT_SHIFT) - 1;
}

/* plain_units is units_of for a plain number, by its doubled bits and their difference. */
static __always_inline __s64 plain_units(__u64 doubled, __u64 difference)
{
	__u64 n = doubled | 1 << EXPONENT_SHIFT;

	FORGET(n); /* otherwise clang sets the bit later, from a constant that it must load */
	n <<= 39;
	/* In assembly, because C does not define shifts by more than 63. A
	 * shift by a register uses only its lowest six bits: NEARER is a
	 * multiple of 64, and the sign is above. */
	asm volatile("%0 s>>= %1" : "+r"(difference) : "i"(EXPONENT_SHIFT));
	asm volatile("%0 >>= %1" : "+r"(n) : "r"(difference));
	asm volatile("%0 s>>= 63" : "+r"(difference));
	asm volatile("%0 ^= %1" : "+r"(n) : "r"(difference)); /* clang would copy a register */
	/* A negative number has become -n - 1. So 1 is added before the shift
	 * for either sign, and halves are rounded away from zero. */
	return (__s64)(n + 1) >> 1;
}

/* to_float converts to the nearest float32, ties to even. It has no branch,
 * because the verifier would follow each through the rest of the frame. */
static __always_inline __u32 to_float(__s64 n, __s64 exp)
{
	__u64 negative = n >> 63, biased = 127 + 62 + exp, upper, shift, nonzero;
	__u64 m = ((__u64)n ^ negative) - negative;

	m -= m >> 63; /* 2^63 is one bit too long, and 2^63 - 1 becomes the same float */
	nonzero = (__s64)-m >> 63;
	FORGET(nonzero); /* otherwise clang branches at its use */
	/* Normalise to 63 bits. A step shifts by 2^log if the 2^log upper bits
	 * are zero: then upper - 1 is negative. */
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
	 * bit kept, carries exactly where nearest-even rounds up. A carry out
	 * of the significand correctly increments the exponent. */
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
	slot = walked_slot(w);
	if (!slot)
		return 0;
	units = units_of(w->bits, w->job->exp);
	sum = (__u64)*slot + units;
	if (overflows(*slot, units, sum)) {
		w->result = REFUSAL(CODE_OVERFLOW, i, 0);
		return 1;
	}
	*slot = sum;
	return 0;
}

/* undo_pair subtracts a pair again. */
static long undo_pair(__u32 i, void *arg)
{
	struct walk *w = arg;
	__s64 *slot;

	w->position = i;
	if (!step(w))
		return 0;
	slot = walked_slot(w);
	if (slot)
		*slot -= units_of(w->bits, w->job->exp);
	return 0;
}

/* add_carefully adds pair by pair until a sum overflows. Then it subtracts all
 * of them again and returns the refusal; otherwise 0. */
__noinline __u64 add_carefully(struct xdp_md *ctx, __u32 l3, const struct job *job, __u32 bank)
{
	struct walk w = { .ctx = ctx, .l3 = l3, .job = job, .bank = bank };

	if (!job)
		return 0;
	bpf_loop(PAIRS, add_pair, &w, 0);
	if (w.result)
		bpf_loop(w.position, undo_pair, &w, 0);
	return w.result;
}

/* What all lanes of a frame share. */
struct exact {
	volatile __u64 reach; /* on the stack, because there are too few registers */
	__u64 limit;          /* of a slot's place in the page, in bytes */
	const __u32 *slots;   /* of the page */
	__u64 half;           /* of the range */
	__u64 beyond;         /* top bit: a number was not plain, or a sum left the lower half */
};

/* rank_beyond is what move_exact_stripe returns for a rank out of the job's
 * range. Clang would load a constant before each comparison that may lead
 * here. */
static __always_inline int rank_beyond(void)
{
	int yes;

	asm volatile("%0 = 1" : "=r"(yes));
	return yes;
}

/* move_exact_stripe adds the pairs of a stripe, or subtracts them again. It
 * skips numbers that are not plain, stops at a rank out of the job's range, and
 * returns whether it stopped. Both depend only on the frame, so the same pairs
 * are added and subtracted. The order does not matter: sums that wrapped when
 * adding wrap back when subtracting. */
static __always_inline int move_exact_stripe(const struct stripe *s, __u32 dense, int take,
					     struct exact *e, struct page *page)
{
	__u64 beyond = e->beyond, four = 0;

	FORGET(s);
#pragma unroll
	for (__u32 lane = 0; lane < LANES; lane++) {
		__u64 at, doubled, difference;
		__s64 *slot, units, sum;
		__u32 slots;

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
			at &= (PAGE_SLOTS - 1) << 3;
			if (__builtin_expect(at >= e->limit, 0))
				return rank_beyond();
		} else {
			/* Reloaded: from each compared lane, the verifier would
			 * learn a different minimum of slots. */
			slots = *(volatile __u32 *)e->slots;
			at = bpf_ntohs(s->slots[lane]) * LANES + lane;
			if (__builtin_expect(at >= slots, 0))
				return rank_beyond();
			FORGET(at);
			at = (at & (PAGE_SLOTS - 1)) << 3;
		}
		asm volatile("%0 += %1" : "+r"(at) : "r"(page));
		slot = (void *)at;

		doubled = bpf_ntohl(s->bits[lane]);
		FORGET(doubled);
		asm volatile("%0 += %0" : "+r"(doubled)); /* clang would shift */
		difference = e->reach - doubled;
		if (__builtin_expect((__u32)difference < NEAREST, 0)) {
			if (!take) {
				difference = e->reach - NEAREST - (__u32)doubled;
				asm volatile("%0 |= %1" : "+r"(beyond) : "r"(difference));
			}
			continue;
		}
		units = plain_units(doubled, difference);
		sum = take ? *slot - units : *slot + units;
		*slot = sum;
		if (!take) {
			sum += e->half;
			asm volatile("%0 |= %1" : "+r"(beyond) : "r"(sum));
		}
	}
	e->beyond = beyond;
	return 0;
}

/* set_page sets what move_exact_stripe compares slots with. It returns 0 if the
 * page is none of the job's. A page always has slots. Without this check the
 * verifier would learn it from some lanes but not from others, and would check
 * the rest of the frame for each case. */
static __always_inline int set_page(struct exact *e, const struct job *job, __u32 number)
{
	e->slots = &job->page_slots[1 - is_before(number, job->last_page)];
	e->limit = (__u64)*e->slots << 3;
	FORGET(e->limit);
	return e->limit >= 8;
}

/* add_exact adds all pairs of a frame to a bank. It returns 0 if all numbers were
 * plain and all sums stayed in the lower half of the range, -2^62 to 2^62-1:
 * since plain numbers are also in the lower half, then no sum has overflowed. If
 * not, only some pairs are added, and take_exact must subtract them again. Unused
 * lanes must be zero.
 *
 * It is the one function whose speed decides that of most frames. So it has the
 * stripes in its loop, where the verifier checks each of them, and looks a page up
 * only where it changes: either call would take longer than a pair. */
__noinline __u32 add_exact(struct xdp_md *ctx, __u32 l3, const struct job *job, __u32 key)
{
	struct exact e = { .half = 1ULL << 62 };
	__u32 n, dense, number, last = 0;
	struct page *page = NULL;
	void *end, *bank = bank_of(key);
	struct packet *p;
	struct stripe *s;
	int ended;

	p = packet_at(ctx, l3, &end);
	if (!p || !job || !bank)
		return 1;
	e.reach = reach_of(job->exp);
	FORGET(e.half);
	dense = p->header.flags & FLAG_DENSE;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		number = page_number(s);
		FORGET(number);
		if (!page || number != last) {
			page = bpf_map_lookup_elem(bank, &number);
			if (!page || !set_page(&e, job, number))
				return 1;
			last = number;
		}
		FORGET(last);
		/* Two bodies: a dense pair needs no multiplication. */
		ended = dense ? move_exact_stripe(s, 1, 0, &e, page) :
				move_exact_stripe(s, 0, 0, &e, page);
		if (ended)
			return 1;
	}
	/* No comparison, because the verifier would follow all values that lead
	 * to either outcome. */
	FORGET(e.beyond);
	return e.beyond >> 63;
}

/* take_exact_stripe is take_exact for the stripe at an offset. It returns whether
 * add_exact has stopped in it. */
__noinline int take_exact_stripe(struct xdp_md *ctx, __u32 at, __u32 flags, const struct job *job,
				 struct page *page)
{
	struct stripe *s = stripe_at(ctx, at);
	struct exact e = {};

	if (!s || !job || !page || !set_page(&e, job, page_number(s)))
		return 1;
	e.reach = reach_of(job->exp);
	return flags & FLAG_DENSE ? move_exact_stripe(s, 1, 1, &e, page) :
				    move_exact_stripe(s, 0, 1, &e, page);
}

/* take_exact subtracts what add_exact has added of a frame. */
__noinline int take_exact(struct xdp_md *ctx, __u32 l3, const struct job *job, __u32 key)
{
	void *end, *bank = bank_of(key);
	struct packet *p = packet_at(ctx, l3, &end);
	__u32 n, flags, at = first_stripe(l3);
	struct page *page;
	struct stripe *s;

	if (!p || !job || !bank)
		return 0;
	flags = p->header.flags;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++, at += STRIPE_LEN) {
		__u32 number;

		if (i >= n || (void *)(s + 1) > end)
			break;
		number = page_number(s);
		page = bpf_map_lookup_elem(bank, &number);
		if (!page || take_exact_stripe(ctx, at, flags, job, page))
			break;
	}
	return 0;
}
