/* Adding a frame to a bank: whole or not at all. The caller holds the job's
 * lock. */
#pragma once

#include "exact.h"

static __always_inline int overflows(__s64 a, __s64 b, __s64 sum)
{
	return ((a ^ sum) & (b ^ sum)) < 0;
}

static long add_pair(__u32 i, void *arg)
{
	struct walk *w = arg;
	__s64 units, sum, *slot;

	w->position = i;
	if (!step(w))
		return 0;
	slot = &w->bank->slots[w->rank % MAX_SLOTS];
	units = units_of(w->bits, w->job->exp);
	sum = (__u64)*slot + units;
	if (overflows(*slot, units, sum)) {
		w->result = REFUSAL(CODE_OVERFLOW, i, 0);
		return 1;
	}
	*slot = sum;
	return 0;
}

/* undo_pair takes a pair back. The order does not matter: sums that wrapped on
 * the way there wrap on the way back. */
static long undo_pair(__u32 i, void *arg)
{
	struct walk *w = arg;

	w->position = i;
	if (step(w))
		w->bank->slots[w->rank % MAX_SLOTS] -= units_of(w->bits, w->job->exp);
	return 0;
}

/* add_carefully adds pair by pair until a sum overflows. Then it takes all back
 * and returns the refusal; otherwise 0. It first takes back as many pairs of
 * the frame as it is told. */
__noinline __u64 add_carefully(struct xdp_md *ctx, __u32 l3, const struct job *job,
			       struct bank *bank, __u32 added)
{
	struct walk w = { .ctx = ctx, .l3 = l3, .job = job, .bank = bank };

	if (!job || !bank)
		return 0;
	bpf_loop(added, undo_pair, &w, 0);
	bpf_loop(PAIRS, add_pair, &w, 0);
	if (w.result)
		bpf_loop(w.position, undo_pair, &w, 0);
	return w.result;
}

static __always_inline __s64 *slot_of(const struct stripe *s, __u32 lane, __u32 dense,
				      struct bank *bank)
{
	__u32 at = bpf_ntohs(s->slots[lane]);

	return &bank->slots[dense ? at : at * LANES % MAX_SLOTS + lane];
}

/* add_stripe adds the pairs of a stripe. It returns a number whose bit 1 is set
 * if a sum left the lower half of the range, -2^62 to 2^62-1. */
static __always_inline __u64 add_stripe(const struct stripe *s, __u32 dense, __s64 exp,
					struct bank *bank)
{
	__u64 upper = 0;

#pragma unroll
	for (__u32 lane = 0; lane < LANES; lane++) {
		__u32 bits = bpf_ntohl(s->bits[lane]);
		__s64 *slot, sum;
		__u64 shift;

		FORGET(bits);
		shift = shift_of(bits, exp);
		if (vanishes(shift))
			continue;
		FORGET(shift);
		slot = slot_of(s, lane, dense, bank);
		sum = (__u64)*slot + to_units(bits, shift);
		*slot = sum;
		upper |= (sum >> 62) + 1; /* from -2 to 1, the lower half is -1 and 0 */
		FORGET(upper);
	}
	return upper;
}

/* add_plain adds all pairs to a bank. They must be plain, and unused lanes zero.
 * It tells whether all sums stayed in the lower half of the range: as plain
 * values are in the lower half, too, a sum that overflowed cannot have. */
__noinline int add_plain(struct xdp_md *ctx, __u32 l3, const struct job *job, struct bank *bank)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	__u64 upper = 0;
	struct stripe *s;
	__u32 n, dense;
	__s64 exp;

	if (!p || !job || !bank)
		return 0;
	exp = job->exp;
	dense = p->header.flags & FLAG_DENSE;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		/* Two bodies: a dense pair needs no multiplication. */
		upper |= dense ? add_stripe(s, 1, exp, bank) : add_stripe(s, 0, exp, bank);
	}
	return !(upper & 2);
}

/* add adds all pairs of a frame to a bank, or returns the refusal of the first
 * that cannot be added. found is what survey found, and diagnose must have
 * found nothing. */
static __always_inline __u64 add(struct xdp_md *ctx, __u32 l3, struct job *job, struct bank *bank,
				 __u32 found)
{
	__u32 added = 0;

	if (found & PLAIN) {
		if (add_plain(ctx, l3, job, bank))
			return 0;
		added = PAIRS;
	}
	return add_carefully(ctx, l3, job, bank, added);
}
