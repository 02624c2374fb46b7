/* The duplicate filter. Go's retransmit.Filter is its reference and says why
 * it is exact.
 *
 * Beside the sequence number that was last applied at a place (low half), an
 * entry holds the one that is being applied (high half). At rest they are
 * equal. While a CPU adds a frame they differ, and a copy of the frame that
 * reaches another CPU in the meantime is neither added nor acknowledged: the
 * first CPU may yet find that a sum overflows and refuse the frame. The copy
 * is dropped; the sender repeats it if the first CPU's answer is lost. */
#pragma once

#include "maps.h"

enum freshness {
	FRESH,
	DUPLICATE,
	BUSY, /* another CPU is at this place */
};

static __always_inline __u64 *entry_of(struct sender *sender, __u32 seq)
{
	return &sender->seen[seq % (2 * WINDOW)];
}

static __always_inline enum freshness judge(__u64 entry, __u32 seq)
{
	__u32 applied = entry, claimed = entry >> 32;

	if ((__s32)(seq - applied) <= 0)
		return DUPLICATE;
	return applied == claimed ? FRESH : BUSY;
}

/* claim announces that this CPU applies frame seq. It fails if another CPU
 * changed the entry since it was read. */
static __always_inline int claim(__u64 *entry, __u64 old, __u32 seq)
{
	__u64 claimed = (__u64)seq << 32 | (__u32)old;

	return __sync_val_compare_and_swap(entry, old, claimed) == old;
}

/* settle ends a claim. The atomic operations before it are full barriers, so
 * whoever reads the settled entry also sees the additions. */
static __always_inline void settle(__u64 *entry, __u32 seq)
{
	*(volatile __u64 *)entry = (__u64)seq << 32 | seq;
}
