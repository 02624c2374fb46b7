/* The "fixed" arithmetic: pairs and slots are int32, scaled by the workers. Go's
 * internal/num/scaled is its reference. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "stripes.h"

/* clip returns the int32 nearest to the sum of two. */
static __always_inline __s64 clip(__s64 sum)
{
	return sum < 0 ? -(1LL << 31) : (1LL << 31) - 1;
}

static __always_inline __u32 add_fixed_stripe(const struct stripe *s, __u32 dense, struct page *page)
{
	__u32 saturated = 0;

#pragma unroll
	for (__u32 lane = 0; lane < LANES; lane++) {
		__s64 *slot = slot_of(s, lane, dense, page);
		__s64 sum = *slot + (__s32)bpf_ntohl(s->bits[lane]);

		if (__builtin_expect((__u64)(sum + (1LL << 31)) >> 32, 0)) {
			sum = clip(sum);
			saturated++;
		}
		*slot = sum;
		FORGET(saturated);
	}
	return saturated;
}

/* add_fixed adds all pairs of a frame. It returns the number of saturated
 * additions. The ranks must have been checked, and unused lanes must be
 * zero. */
__noinline __u32 add_fixed(struct xdp_md *ctx, __u32 l3, __u32 last_page, __u32 key)
{
	void *end, *bank = bank_of(key);
	struct packet *p = packet_at(ctx, l3, &end);
	struct page *page;
	__u32 n, dense, saturated = 0;
	struct stripe *s;

	if (!p || !bank)
		return 0;
	dense = p->header.flags & FLAG_DENSE;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		page = page_of(bank, s, last_page);
		if (!page)
			break;
		saturated += dense ? add_fixed_stripe(s, 1, page) : add_fixed_stripe(s, 0, page);
	}
	return saturated;
}
