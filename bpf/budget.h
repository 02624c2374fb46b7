/* A budget for frames that cost more than ordinary ones. A frame that is plain and
 * fits is added in half a microsecond; to find the pair that is not valid, or to
 * add pair by pair, takes up to twenty times as long. A sender that makes the
 * program do that all the time would take the CPU from other jobs. So each such
 * frame is paid for, and one that its sender cannot pay for is dropped and counted:
 * the only frames, beside raced ones, that are well-formed and not answered. An
 * honest sender repeats them.
 *
 * The budget is a leaky bucket, kept as the time until which it is spent (ITU-T
 * I.371, annex A). */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "maps.h"

/* In place of a refusal: the frame cannot be paid for. No refusal has code 0. */
#define THROTTLED 1ULL

/* pay takes the cost of one frame from a sender's budget, if there is enough. The
 * job's lock is not needed: frames on two CPUs pay one after the other. */
static __always_inline int pay(struct sender *sender)
{
	__u64 now, spent;

	if (!budget_cost)
		return 1;
	now = bpf_ktime_get_ns();
	spent = *(volatile __u64 *)&sender->spent;
	if ((__s64)(now - spent) > (__s64)budget_depth) /* no more is saved than the depth */
		__sync_val_compare_and_swap(&sender->spent, spent, now - budget_depth);
	spent = __sync_fetch_and_add(&sender->spent, budget_cost);
	if ((__s64)(now - spent) >= (__s64)budget_cost)
		return 1;
	__sync_fetch_and_add(&sender->spent, -budget_cost);
	return 0;
}
