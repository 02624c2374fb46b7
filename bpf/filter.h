/* The duplicate filter. Go's retransmit.Filter is its reference and
 * explains why it is exact. It is read and written under the job's lock. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "maps.h"

/* place_of returns the entry of seq, which holds the last applied sequence
 * number that maps to it. */
static __always_inline __u32 *place_of(struct sender *sender, __u32 seq)
{
	return &sender->seen[seq % (2 * WINDOW)];
}

static __always_inline int is_fresh(__u32 applied, __u32 seq)
{
	return (__s32)(seq - applied) > 0;
}

/* cover_of returns which frames around seq are applied. */
__noinline __u64 cover_of(struct sender *sender, __u32 seq)
{
	__u64 cover = 0;

	if (!sender)
		return 0;
	for (__u32 i = 0; i < COVER_BITS; i++) {
		__u32 other = seq + COVER_AHEAD - i;

		cover |= (__u64)!is_fresh(*place_of(sender, other), other) << i;
	}
	return cover;
}
