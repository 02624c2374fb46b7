/* Adding a frame to a bank: whole or not at all. The caller holds the job's
 * lock. */
#pragma once

#include "exact.h"
#include "fixed.h"
#include "lut.h"
#include "survey.h"

/* add adds all pairs of a frame to a bank, or returns the refusal of the first
 * that cannot be added. found is what survey found, and diagnose must have
 * found nothing. */
static __always_inline __u64 add(struct xdp_md *ctx, __u32 l3, struct job *job, struct bank *bank,
				 __u32 found)
{
	__u32 added = 0;

	switch (job->arithmetic) {
	case FIXED:
		job->saturated += add_fixed(ctx, l3, bank);
		return 0;
	case LUT:
		job->saturated += add_lut(ctx, l3, bank);
		return 0;
	}
	if (found & PLAIN) {
		if (add_exact(ctx, l3, job, bank))
			return 0;
		added = PAIRS;
	}
	return add_carefully(ctx, l3, job, bank, added);
}
