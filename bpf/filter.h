/* The duplicate filter. Go's retransmit.Filter is its reference and
 * explains why it is exact. It is read and written under the job's lock.
 *
 * A sender has two, so that the loader can read without the lock which frames
 * are in the bank of a swap and in those before it. The first frame after a swap
 * copies the current filter to the other one and goes on with that; so the older
 * one stays as it was at the swap, until the first frame after the next swap. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "stripes.h"

/* An entry is the number of the newest frame that maps to it. If that was
 * refused, bit 63 is set, and the bits from 32 on are those of the refusal:
 * code and index, not the value. */
#define REFUSED (1ULL << 63)

/* A sender's turn names its current filter by its lowest bit; the others count
 * the swaps of the banks until the filter became current. */
#define FILTER 1U

static __always_inline __u64 *place_of(struct sender *sender, __u32 seq)
{
	return &sender->seen[sender->turn & FILTER][seq % (2 * WINDOW)];
}

/* turn_filters makes the other filter the current one, with the same entries.
 * The loader may read the former one at the same time. */
__noinline int turn_filters(struct sender *sender, __u32 swaps)
{
	__u32 other;

	if (!sender)
		return 0;
	other = ~sender->turn & FILTER;
	for (__u32 i = 0; i < 2 * WINDOW; i++) {
		/* clang would call memcpy, which BPF does not have. */
		FORGET(i);
		if (i >= 2 * WINDOW)
			break;
		sender->seen[other][i] = sender->seen[!other][i];
	}
	sender->turn = swaps << 1 | other;
	return 0;
}

/* keep_filter leaves a filter as it was at the last of the swaps of the banks
 * to the loader. */
static __always_inline void keep_filter(struct sender *sender, __u32 swaps)
{
	if (sender->turn >> 1 != swaps)
		turn_filters(sender, swaps);
}

static __always_inline int is_fresh(__u64 entry, __u32 seq)
{
	return (__s32)(seq - (__u32)entry) > 0;
}

/* was_applied returns whether a frame was applied, as far as its entry knows. */
static __always_inline int was_applied(__u64 entry, __u32 seq)
{
	return !is_fresh(entry, seq) && !(entry & REFUSED);
}

/* remember_refusal makes a refusal that depends on the sums, or on the round,
 * hold for all copies of a frame. */
static __always_inline void remember_refusal(struct sender *sender, __u32 seq, __u64 why)
{
	*place_of(sender, seq) = REFUSED | (why & ~0ULL << 32) | seq;
}

/* former_refusal returns the refusal of an earlier copy of a frame, or 0. */
static __always_inline __u64 former_refusal(__u64 entry, __u32 seq)
{
	if (!(entry & REFUSED) || (__u32)entry != seq)
		return 0;
	return entry & ~REFUSED & ~0ULL << 32;
}

/* cover_of returns which frames around seq are applied. It has no branch: an
 * entry's bit 63 joins the sign of how far the entry is behind. */
__noinline __u64 cover_of(struct sender *sender, __u32 seq)
{
	__u32 other = seq + COVER_AHEAD - (COVER_BITS - 1);
	__u64 others = 0;

	if (!sender)
		return 0;
	for (__u32 i = 0; i < COVER_BITS; i++, other++) {
		__u64 entry = *place_of(sender, other);
		__s64 behind = (__s32)(other - (__u32)entry);

		others = others << 1 | (entry | -behind) >> 63;
	}
	return ~others;
}
