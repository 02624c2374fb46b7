/* The duplicate filter. Go's retransmit.Filter is its reference and
 * explains why it is exact. It is read and written under the job's lock. */
#pragma once

#include "maps.h"

/* place_of returns where the sequence number that was last applied in seq's
 * place is kept. */
static __always_inline __u32 *place_of(struct sender *sender, __u32 seq)
{
	return &sender->seen[seq % (2 * WINDOW)];
}

static __always_inline int is_fresh(__u32 applied, __u32 seq)
{
	return (__s32)(seq - applied) > 0;
}
