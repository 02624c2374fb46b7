/* Rounds: modes "sync" and "acked", in jobs of one page. One HOT frame carries
 * one whole group of slots: max_stripes stripes, except for the last group.
 *
 * In mode "sync", round v adds into bank v & 1. The other bank holds the sums of
 * round v - 1, for senders that have missed them. Two banks are enough: a sender
 * that contributes to round v has the sums of round v - 1, so they are not
 * needed when round v is complete (SwitchML, NSDI 2021).
 *
 * In mode "acked", all rounds add into bank 0; see acked.h. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "apply.h"

/* other_slots returns nonzero if a lane of a whole stripe does not name the
 * slot. */
static __always_inline __u64 other_slots(const struct stripe *s, __u32 slot)
{
	__u64 four = slot * 0x0001000100010001ULL, other = 0;

#pragma unroll
	for (int k = 0; k < LANES / 4; k++)
		other |= LOAD64(s, offsetof(struct stripe, slots[4 * k])) ^ four;
	return other | (bpf_ntohs(s->slots[LANES - 2]) ^ slot) | (bpf_ntohs(s->slots[LANES - 1]) ^ slot);
}

/* other_lanes returns nonzero if the stripe at an offset does not have the lanes
 * of a mask, all of a slot. It is for the last stripe of a job, whose mask may not be
 * the whole one. */
__noinline __u64 other_lanes(struct xdp_md *ctx, __u32 at, __u32 slot, __u32 mask)
{
	struct stripe *s = stripe_at(ctx, at);
	__u64 other;

	if (!s)
		return 1;
	other = bpf_ntohl(s->mask) ^ mask;
#pragma unroll
	for (__u32 lane = 0; lane < LANES; lane++)
		other |= (bpf_ntohs(s->slots[lane]) ^ slot) & -(mask >> lane & 1);
	return other;
}

/* misshapen returns a refusal if a frame is not one whole group, or 0. */
__noinline __u64 misshapen(struct xdp_md *ctx, __u32 l3, const struct job *job)
{
	const __u64 layout = REFUSAL(CODE_LAYOUT, 0, 0);
	__u32 first, n, want, ranks, at = first_stripe(l3);
	struct packet *p;
	struct stripe *s;
	__u64 other = 0;
	void *end;

	p = packet_at(ctx, l3, &end);
	if (!p || !job)
		return layout;
	s = stripes_of(p);
	if ((void *)(s + 1) > end || !(bpf_ntohl(s->mask) & 1))
		return layout;
	first = bpf_ntohs(s->slots[0]);
	if (first * LANES >= job->slots)
		return REFUSAL(CODE_SLOT_RANGE, 0, job->slots);
	if (first % job->max_stripes)
		return layout;
	ranks = job->slots - first * LANES;
	want = (ranks + LANES - 1) / LANES;
	if (want > job->max_stripes)
		want = job->max_stripes;
	n = stripe_count(body_length(p));
	if (n != want)
		return REFUSAL(CODE_LENGTH, 0, want);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++, at += STRIPE_LEN, ranks -= LANES) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		if (ranks >= LANES) {
			other |= bpf_ntohl(s->mask) ^ LANE_MASK;
			other |= other_slots(s, first + i);
		} else {
			__u32 mask = (1U << (ranks & 31)) - 1;

			other |= other_lanes(ctx, at, first + i, mask);
		}
	}
	return other ? layout : 0;
}

/* next_round ends the round of a group whose first slot is given: the next round
 * adds into a bank, where it clears the group. Its slots are contiguous. The
 * last group may end before its last lane, but no slots follow it. */
__noinline int next_round(const struct job *job, struct group *group, __u32 key, __u32 first)
{
	void *bank = bank_of(key);
	__u32 number = 0, n;
	struct page *page;

	if (!job || !group || !bank)
		return 0;
	page = bpf_map_lookup_elem(bank, &number);
	if (!page)
		return 0;
	n = (job->slots + LANES - 1) / LANES - first;
	if (n > job->max_stripes)
		n = job->max_stripes;
	FORGET(n);
	for (__u32 i = 0; i < MAX_STRIPES; i++) {
		if (i >= n)
			break;
#pragma unroll
		for (__u32 lane = 0; lane < LANES; lane++) {
			__u32 at = (first + i) * LANES + lane;

			/* Beyond the page: the stripe's lane 0 again. */
			at -= (at / PAGE_SLOTS) * lane;
			FORGET(at);
			page->slots[at % PAGE_SLOTS] = 0;
		}
	}
	group->contributed = 0;
	group->taken = 0;
	group->round++;
	return 0;
}

/* group_at returns the group with a first slot, or NULL if the job is being
 * removed. */
static __always_inline struct group *group_at(__u32 id, const struct job *job, __u32 first)
{
	void *map = bpf_map_lookup_elem(&groups, &id);
	__u32 index = first / job->max_stripes;

	return map ? bpf_map_lookup_elem(map, &index) : NULL;
}

/* first_slot returns the first slot of a frame that has a stripe. */
static __always_inline __u32 first_slot(struct xdp_md *ctx, __u32 l3)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	struct stripe *s;

	if (!p)
		return 0;
	s = stripes_of(p);
	return (void *)(s + 1) > end ? 0 : bpf_ntohs(s->slots[0]);
}

/* workers_of returns a bit for each worker of a job. */
static __always_inline __u64 workers_of(const struct job *job)
{
	return ~0ULL >> (-job->workers & 63);
}

/* result_bank returns the bank with the result for a worker that has missed it,
 * if a group's round adds into a bank. */
static __always_inline __u32 result_bank(const struct job *job, __u32 bank)
{
	return bank ^ (job->mode != MODE_ACKED);
}

static __always_inline __u64 own_bit(const struct sender *sender)
{
	return 1ULL << (sender->position & 63);
}

/* contribute adds a frame to the round of its group, unless it was applied
 * before, and sets its answer; or it returns the frame's refusal and has
 * changed no sum. The answer to the frame that completes the round is for all
 * workers, and is numbered by the round; the cover of one that waits is the set of
 * senders that have contributed.
 *
 * The caller holds the job's lock. The frame must be a whole group, whose round
 * adds into bank. */
static __always_inline __u64 contribute(struct xdp_md *ctx, __u32 l3, const struct judged *f,
					struct job *job, struct sender *sender,
					struct group *group, __u32 bank,
					enum answer *answer)
{
	__u64 all = workers_of(job), own = own_bit(sender);
	__u64 entry = *place_of(sender, f->seq), why;
	int acked = job->mode == MODE_ACKED;

	if (!is_fresh(entry, f->seq)) {
		why = former_refusal(entry, f->seq);
		if (why)
			return why >> 48 == CODE_ROUND ? why | group->round : why;
		count_duplicate(job, sender);
		if (acked ? group->contributed == all : group->round && !(group->contributed & own)) {
			put_sums(ctx, l3, job, result_bank(job, bank));
			*answer = SUMS;
		} else if (f->flags & FLAG_COVER) {
			*answer = COVER_ACK;
		}
		return 0;
	}
	if (group->contributed & own) {
		why = REFUSAL(CODE_ROUND, 0, group->round);
		remember_refusal(sender, f->seq, why);
		return why;
	}
	why = apply_new(ctx, l3, f, job, sender, bank);
	if (why)
		return why;
	group->contributed |= own;
	if (group->contributed != all) {
		if (f->flags & FLAG_QUIET)
			*answer = NOTHING;
		else if (f->flags & FLAG_COVER)
			*answer = COVER_ACK;
		return 0;
	}
	put_sums(ctx, l3, job, bank);
	if (!acked)
		next_round(job, group, result_bank(job, bank), first_slot(ctx, l3));
	job->rounds++;
	*answer = SUMS_TO_ALL;
	return 0;
}
