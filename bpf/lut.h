/* The "lut" arithmetic: float32 numbers, added by table lookup. Go's lut.Adder is
 * its reference and explains the steps. The widths are those of its default
 * configuration. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "tables.h"

#define MANTISSA_BITS 11
#define DELTA_BITS (FRACTION_BITS - MANTISSA_BITS)
#define LOG_BITS 23 /* fraction bits of a logarithm */
#define KEY_BITS 16 /* of the tables mi, sub, exp and final */
#define ENTRY_BITS 16

#define FRACTION_BITS 23
#define FRACTION ((1U << FRACTION_BITS) - 1)
#define HIDDEN (1U << FRACTION_BITS)
#define SIGN (1U << 31)
#define INFINITE (0xffU << FRACTION_BITS)
#define NOT_A_NUMBER 0x7fc00000
#define LARGEST 0x7f7fffff

/* The layout of lut.Adder.Image. */
struct lut {
	__u16 epo[256];
	__u32 log_m[1 << MANTISSA_BITS];
	__u16 log_mln2[1 << MANTISSA_BITS];
	__u16 log_delta[1 << DELTA_BITS];
	__u16 exp[1 << KEY_BITS];
	__u16 sigma[2][1 << KEY_BITS]; /* mi, sub */
	__u16 final[1 << KEY_BITS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_RDONLY_PROG);
	__type(key, __u32);
	__type(value, struct lut);
} tables SEC(".maps");

/* subtract_near returns the sum of two numbers of opposite signs whose
 * exponents differ by at most one, |x| >= |y|. */
static __always_inline __u32 subtract_near(__u32 x, __u32 y, __u32 ex, __u32 ey)
{
	__u32 d = ((x & FRACTION) | HIDDEN) << (ex - ey & 1), n;
	__s32 e;

	d -= (y & FRACTION) | HIDDEN;
	if (!d)
		return 0;
	n = bit_length(d);
	e = ey + n - (FRACTION_BITS + 1);
	if (e <= 0)
		return 0;
	return (x & SIGN) | (__u32)e << FRACTION_BITS | (d << (25 - n & 31) >> 1 & FRACTION);
}

/* add_special returns the sum if x is not finite, or y is zero or subnormal,
 * |x| >= |y|. */
static __always_inline __u32 add_special(__u32 x, __u32 y)
{
	__u32 magnitude = x & ~SIGN;

	if (magnitude > INFINITE || (magnitude == INFINITE && (x ^ y) == SIGN))
		return NOT_A_NUMBER;
	return magnitude < HIDDEN ? 0 : x;
}

static __always_inline __s32 logarithm(const struct lut *t, __u32 p)
{
	__u32 m = (p & FRACTION) >> DELTA_BITS, d = p & ((1 << DELTA_BITS) - 1);
	__u16 key = t->log_delta[d] - t->log_mln2[m];

	return ((__s32)(__s16)t->epo[p >> FRACTION_BITS & 0xff] << LOG_BITS) + t->log_m[m] +
	       t->exp[key];
}

/* lut_add returns the bits of the sum of the float32 numbers with bits a and b. */
static __always_inline __u32 lut_add(__u32 a, __u32 b)
{
	__u32 zero = 0, swap, x, y, ex, ey, opposite, u, k, key, f;
	const struct lut *t = bpf_map_lookup_elem(&tables, &zero);
	__s32 minus, i, theta, v, l, e;

	if (!t)
		return 0;
	swap = (a ^ b) & (__u32)((__s32)((a & ~SIGN) - (b & ~SIGN)) >> 31);
	x = a ^ swap;
	y = b ^ swap;
	ex = x >> FRACTION_BITS & 0xff;
	ey = y >> FRACTION_BITS & 0xff;
	if (ex == 0xff || ey == 0)
		return add_special(x, y);
	opposite = (x ^ y) >> 31;
	if (opposite && ex - ey <= 1)
		return subtract_near(x, y, ex, ey);

	minus = -(__s32)opposite;
	i = logarithm(t, x);
	theta = i - logarithm(t, y) - (minus & 1 << LOG_BITS);
	theta = theta < 0 ? 0 : theta;
	u = theta;
	k = u >> LOG_BITS;
	k = k > 23 ? 23 : k; /* the key is zero there */
	key = (2U << LOG_BITS) - 1 - (u & ((1 << LOG_BITS) - 1));
	key >>= LOG_BITS + 1 - KEY_BITS + k;
	/* Clang knows the bounds of these, the verifier does not. */
	FORGET(opposite);
	FORGET(key);
	v = (t->sigma[opposite & 1][key & 0xffff] ^ minus) - minus;
	if (!v)
		return x;
	l = i + v * (1 << (LOG_BITS - ENTRY_BITS));
	e = (l >> LOG_BITS) + 127;
	if (e >= 0xff)
		return (x & SIGN) | INFINITE;
	f = l >> (LOG_BITS - KEY_BITS);
	FORGET(f);
	f &= (1 << KEY_BITS) - 1;
	return (x & SIGN) | (__u32)e << FRACTION_BITS |
	       (__u32)t->final[f] << (FRACTION_BITS - ENTRY_BITS);
}

/* add_lut_pair adds to a slot, which always holds a finite number, and returns
 * 1 if the sum is saturated. It is global, so that the verifier checks it
 * once. */
__noinline __u32 add_lut_pair(struct page *page, __u32 rank, __u32 bits)
{
	__s64 *slot;
	__u32 sum;

	/* Zero and subnormals change nothing. */
	if (!page || !(bits & INFINITE))
		return 0;
	slot = &page->slots[rank % PAGE_SLOTS];
	sum = lut_add(*slot, bits);
	if ((sum & INFINITE) != INFINITE) {
		*slot = sum;
		return 0;
	}
	*slot = (sum & SIGN) | LARGEST;
	return 1;
}

/* add_lut adds all pairs of a frame, in their order. It returns the number of
 * saturated sums. The pairs must be plain, and unused lanes zero. */
__noinline __u32 add_lut(struct xdp_md *ctx, __u32 l3, __u32 last_page, __u32 key)
{
	void *end, *bank = bank_of(key);
	struct packet *p = packet_at(ctx, l3, &end);
	struct page *page;
	__u32 n, saturated = 0;
	struct ranking r;
	struct stripe *s;

	if (!p || !bank)
		return 0;
	r = ranking_of(p->header.flags);
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		page = page_of(bank, s, last_page);
		if (!page)
			break;
#pragma unroll
		for (__u32 lane = 0; lane < LANES; lane++)
			saturated += add_lut_pair(page, rank_of(s->slots[lane], lane, r),
						  bpf_ntohl(s->bits[lane]));
	}
	return saturated;
}
