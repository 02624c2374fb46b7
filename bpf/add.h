/* Adding a frame to a bank: whole or not at all, on several CPUs at once.
 *
 * Every addition is a compare-and-swap of the sum that was checked for
 * overflow, so no slot ever holds a wrapped sum. (A plain atomic addition
 * behind a check of the old sum saves nothing measurable, and is wrong: a dense
 * frame may name one rank 220 times, and other CPUs add between check and
 * addition.)
 *
 * What remains with several CPUs: if a frame's sum overflows, its earlier
 * additions are undone, and meanwhile another CPU may have seen them. It may
 * have refused a frame that would have fitted without them (the sender learns
 * so), or accepted one that only fitted with them: then the undoing leaves the
 * range, and undo_overflow counts it. Both need sums near the end of the
 * range, where jobs get refusals anyway. */
#pragma once

#include "exact.h"

enum outcome {
	ADDED,
	OVERFLOWED,
	CONTENDED,
};

/* Beside the outcome: an addition that was undone had been built upon. */
#define WRAPPED 0x100

/* How often one addition is tried against other CPUs. */
#define ATTEMPTS 64

/* swap replaces a slot's sum unless another CPU did, and tells whether it did. */
static __always_inline int swap(__s64 *slot, __s64 old, __s64 sum)
{
	__s64 was = __sync_val_compare_and_swap(slot, old, sum);

	FORGET(was);
	return was == old;
}

/* upper_half tells whether a sum lies outside -2^62 to 2^62-1. */
static __always_inline int upper_half(__s64 sum)
{
	return (__s64)((__u64)sum << 1 ^ sum) < 0;
}

static __always_inline int overflows(__s64 a, __s64 b, __s64 sum)
{
	return ((a ^ sum) & (b ^ sum)) < 0;
}

/* add_slot adds to one slot, against other CPUs. Each failed attempt means that
 * another CPU's succeeded. */
__noinline int add_slot(struct bank *bank, __u32 rank, __s64 units)
{
	if (!bank)
		return CONTENDED;
	for (int i = 0; i < ATTEMPTS; i++) {
		__s64 *slot = &bank->slots[rank % MAX_SLOTS];
		__s64 old = *(volatile __s64 *)slot;
		__s64 sum = (__u64)old + units;

		if (overflows(old, units, sum))
			return OVERFLOWED;
		if (swap(slot, old, sum))
			return ADDED;
	}
	return CONTENDED;
}

static long undo_pair(__u32 i, void *arg)
{
	struct walk *w = arg;
	__s64 units, old;

	/* Backwards, so that every sum on the way back is one of the way there. */
	w->position--;
	if (!step(w))
		return 0;
	units = -units_of(w->bits, w->job->exp);
	old = __sync_fetch_and_add(&w->bank->slots[w->rank % MAX_SLOTS], units);
	w->result |= overflows(old, units, (__u64)old + units);
	return 0;
}

/* undo takes the first pairs of a frame back out of a bank, up to a position. It
 * tells whether that left a wrapped sum. */
__noinline __u64 undo(struct xdp_md *ctx, __u32 l3, const struct job *job, struct bank *bank,
		      __u32 position)
{
	struct walk w = { .ctx = ctx, .l3 = l3, .job = job, .bank = bank, .position = position };

	if (job && bank)
		bpf_loop(position, undo_pair, &w, 0);
	return w.result;
}

static long retry_pair(__u32 i, void *arg)
{
	struct walk *w = arg;

	if (step(w))
		w->result = add_slot(w->bank, w->rank, units_of(w->bits, w->job->exp));
	if (w->result != ADDED)
		return 1;
	w->position++;
	return 0;
}

/* add_rest is add for the pairs from a position on, after the first attempt at
 * the pair there failed. */
__noinline __u64 add_rest(struct xdp_md *ctx, __u32 l3, const struct job *job, struct bank *bank,
			  __u32 position)
{
	struct walk w = { .ctx = ctx, .l3 = l3, .job = job, .bank = bank, .position = position };

	if (!job || !bank)
		return CONTENDED;
	bpf_loop(PAIRS, retry_pair, &w, 0);
	if (w.result != ADDED && undo(ctx, l3, job, bank, w.position))
		return (__u64)w.position << 32 | w.result | WRAPPED;
	return (__u64)w.position << 32 | w.result;
}

static __always_inline __s64 *slot_of(const struct stripe *s, __u32 lane, __u32 dense,
				      struct bank *bank)
{
	__u32 at = bpf_ntohs(s->slots[lane]);

	return &bank->slots[dense ? at : at * LANES % MAX_SLOTS + lane];
}

/* add_lane adds the pair in a lane and tells whether it did. */
static __always_inline int add_lane(const struct stripe *s, __u32 lane, __u32 dense, __s64 exp,
				    struct bank *bank)
{
	__u32 bits = bpf_ntohl(s->bits[lane]);
	__s64 old, *slot;
	__u64 shift;

	FORGET(bits);
	shift = shift_of(bits, exp);
	if (vanishes(shift))
		return 1;
	FORGET(shift);
	slot = slot_of(s, lane, dense, bank);
	old = *slot;
	return !upper_half(old) && swap(slot, old, old + to_units(bits, shift));
}

/* add_stripe adds the pairs of a stripe, and returns LANES or the first lane
 * where that failed. It reads all slots first: processors wait for each
 * compare-and-swap before they begin the next read, so that cache misses would
 * follow one after the other, while these overlap. */
static __always_inline __u32 add_stripe(const struct stripe *s, __u32 dense, __s64 exp,
					struct bank *bank)
{
	__u32 lane;

#pragma unroll
	for (lane = 0; lane < LANES; lane++)
		(void)*(volatile __s64 *)slot_of(s, lane, dense, bank);
#pragma unroll
	for (lane = 0; lane < LANES; lane++)
		if (!add_lane(s, lane, dense, exp, bank))
			break;
	return lane;
}

/* add adds all pairs to a bank, or none. It returns an outcome, and in the upper
 * half the position of the pair that overflowed. The pairs must be plain, and
 * unused lanes zero. */
__noinline __u64 add(struct xdp_md *ctx, __u32 l3, const struct job *job, struct bank *bank)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	struct stripe *s;
	__u32 n, dense;
	__s64 exp;

	if (!p || !job || !bank)
		return CONTENDED;
	exp = job->exp;
	dense = p->header.flags & FLAG_DENSE;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		__u32 lane;

		if (i >= n || (void *)(s + 1) > end)
			break;
		/* Two bodies: a dense pair needs no multiplication. */
		lane = dense ? add_stripe(s, 1, exp, bank) : add_stripe(s, 0, exp, bank);
		if (lane < LANES)
			return add_rest(ctx, l3, job, bank, i * LANES + lane);
	}
	return ADDED;
}
