/* A budget for frames that cost more than ordinary ones. A plain frame whose
 * sums stay in range is added in half a microsecond; finding an invalid pair,
 * or adding pair by pair, takes up to twenty times as long. A sender of many
 * such frames would take the CPU from other jobs. So each of them costs budget,
 * and without budget it is dropped and counted: apart from raced ones, these
 * are the only well-formed frames that are not answered. An honest sender
 * retransmits them.
 *
 * The budget is a leaky bucket, kept as the time until which it is spent (ITU-T
 * I.371, annex A). */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "maps.h"

/* In place of a refusal: the sender's budget is spent. No refusal has code
 * 0. */
#define THROTTLED 1ULL

/* pay_budget takes the cost of one frame from a sender's budget, if there is
 * enough. The job's lock is not needed: the deduction is atomic. */
static __always_inline int pay_budget(struct sender *sender)
{
	__u64 now, spent;

	if (!budget_cost)
		return 1;
	now = bpf_ktime_get_ns();
	spent = *(volatile __u64 *)&sender->spent;
	if ((__s64)(now - spent) > (__s64)budget_depth) /* no more than the depth is saved */
		__sync_val_compare_and_swap(&sender->spent, spent, now - budget_depth);
	spent = __sync_fetch_and_add(&sender->spent, budget_cost);
	if ((__s64)(now - spent) >= (__s64)budget_cost)
		return 1;
	__sync_fetch_and_add(&sender->spent, -budget_cost);
	return 0;
}
