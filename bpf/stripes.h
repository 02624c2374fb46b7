/* The pairs of a HOT frame, and their refusals. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "maps.h"

/* A frame's refusal as one number, so that a function can return it: code,
 * index and value of Go's wire.Refusal. 0 is no refusal. */
#define REFUSAL(code, index, value) ((__u64)(code) << 48 | (__u64)(index) << 32 | (__u32)(value))

/* Hides the origin of a variable's value from clang. Otherwise clang turns sign
 * arithmetic into branches, computes a value twice instead of keeping it, or
 * computes values that a lane has in all stripes in advance and spills them to
 * the stack, which is 512 bytes for the whole call chain. */
#define FORGET(x) asm volatile("" : "+r"(x))

/* packet_at returns the packet whose IP header is at offset l3 of the frame, or
 * NULL if the frame ends before its Libra header. */
static __always_inline struct packet *packet_at(struct xdp_md *ctx, __u32 l3, void **end)
{
	void *data = (void *)(long)ctx->data;
	struct packet *p = data + (l3 & L3_MASK);

	*end = (void *)(long)ctx->data_end;
	/* The verifier does not conclude the second from the first. */
	return (void *)(p + 1) > *end || data + sizeof(struct ethernet) > *end ? NULL : p;
}

static __always_inline struct stripe *stripes_of(struct packet *p)
{
	return (void *)(p + 1);
}

/* body_length returns the length of the body after the header, from a checked
 * UDP length. */
static __always_inline __u32 body_length(const struct packet *p)
{
	return bpf_ntohs(p->udp.length) - sizeof(struct udp) - HEADER_LEN;
}

/* stripe_count returns the number of stripes of a body, 0 if it is not 1 to
 * MAX_STRIPES whole ones. */
static __always_inline __u32 stripe_count(__u32 length)
{
	/* length / STRIPE_LEN for multiples of it up to MAX_STRIPES: a division
	 * is many times slower than a multiplication. */
	__u32 n = length * (65536 / STRIPE_LEN + 1) >> 16;

	n = n <= MAX_STRIPES && n * STRIPE_LEN == length ? n : 0;
	FORGET(n); /* otherwise clang repeats these comparisons for each stripe */
	return n;
}

/* A global function for one stripe is given the offset of the stripe in the
 * frame. So the verifier checks it once, for any offset, and not once for each
 * stripe of a loop. */
static __always_inline __u32 first_stripe(__u32 l3)
{
	return (l3 & L3_MASK) + sizeof(struct packet);
}

/* stripe_at returns the stripe at an offset, or NULL if the frame ends before
 * its end. */
static __always_inline struct stripe *stripe_at(struct xdp_md *ctx, __u32 at)
{
	struct stripe *s = (void *)(long)ctx->data + (at & FRAME_MASK);

	return (void *)(s + 1) > (void *)(long)ctx->data_end ? NULL : s;
}

/* bank_of returns a bank, or NULL if the job is being removed. */
static __always_inline void *bank_of(__u32 bank)
{
	return bpf_map_lookup_elem(&banks, &bank);
}

/* page_number returns the page of a stripe. It may be none of the job's. */
static __always_inline __u32 page_number(const struct stripe *s)
{
	return bpf_ntohl(s->mask) >> LANES;
}

/* is_before returns 1 if a page is before the last one of a job, else 0. It has no
 * branch: the verifier would follow all sequences of pages that a frame may
 * have. For the same reason most functions look the page of each stripe up. */
static __always_inline __u64 is_before(__u32 number, __u32 last_page)
{
	__u64 before = ((__u64)number - last_page) >> 63;

	FORGET(before);
	return before;
}

/* page_of returns the page of a stripe that has no pairs in pages beyond the
 * job's, or NULL if the job is being removed. */
static __always_inline struct page *page_of(void *bank, const struct stripe *s, __u32 last_page)
{
	__u64 before = -is_before(page_number(s), last_page);
	__u32 number = (page_number(s) & before) | (last_page & ~before);

	return bpf_map_lookup_elem(bank, &number);
}

/* The conversion of a pair's 16-bit number to its rank within the page: times m,
 * plus its lane in the aligned layout. Computed once per frame, it saves a branch
 * per pair. */
struct ranking {
	__u32 times;
	__u32 lanes;
};

static __always_inline struct ranking ranking_of(__u32 flags)
{
	struct ranking dense = { 1, 0 }, aligned = { LANES, 0xffffffff };

	return flags & FLAG_DENSE ? dense : aligned;
}

static __always_inline __u32 rank_of(__be16 slot, __u32 lane, struct ranking r)
{
	return bpf_ntohs(slot) * r.times + (lane & r.lanes);
}

/* Loads eight bytes from an offset of a stripe in one instruction. In C, clang
 * would combine smaller loads, because a stripe is aligned to only four
 * bytes. */
#define LOAD64(s, offset)                                                          \
	({                                                                         \
		__u64 x__;                                                         \
		asm volatile("%0 = *(u64 *)(%1 + %2)"                              \
			     : "=r"(x__)                                           \
			     : "r"(s), "i"(offset)                                 \
			     : "memory");                                          \
		bpf_be64_to_cpu(x__);                                              \
	})

/* bits_set returns the number of bits that are set. */
static __always_inline __u32 bits_set(__u32 m)
{
	m -= m >> 1 & 0x55555555;
	m = (m & 0x33333333) + (m >> 2 & 0x33333333);
	m = (m + (m >> 4)) & 0x0f0f0f0f;
	return m * 0x01010101 >> 24;
}

/* clear_unused zeroes the lanes of a stripe that are not in its mask. */
static __always_inline void clear_unused(struct stripe *s, __u32 mask)
{
#pragma unroll
	for (__u32 lane = 0; lane < LANES; lane++) {
		__u32 used = -(mask >> lane & 1);

		s->bits[lane] &= used;
		s->slots[lane] &= used;
	}
}

/* A walk goes through the pairs of a frame one by one, by bpf_loop. It is for
 * rare cases: it takes a call for each pair, but the verifier checks one call
 * instead of hundreds. */
struct walk {
	struct xdp_md *ctx;
	const struct job *job;
	__u32 bank;
	__u32 l3;
	__u32 position; /* of the pair in the frame: stripe * LANES + lane */
	__u32 bits;
	__u32 page;
	__u32 slot; /* in the page, if the rank is one of the job's */
	__u32 rank;
	__u64 result;
};

#define NO_RANK 0xffffffff /* of a slot that is not in its page */

/* step fetches the pair at w->position and returns whether its lane is used. */
static __always_inline int step(struct walk *w)
{
	void *end, *data = (void *)(long)w->ctx->data;
	struct packet *p = packet_at(w->ctx, w->l3, &end);
	__u32 i, lane, at;
	__be16 *slot;
	__be32 *bits;
	__u32 *mask;

	if (!p || w->position >= PAIRS)
		return 0;
	i = w->position / LANES;
	lane = w->position % LANES;
	if (i >= stripe_count(body_length(p)))
		return 0;
	at = (w->l3 & L3_MASK) + sizeof(*p) + i * STRIPE_LEN;
	/* The verifier does not know the bounds of quotients and remainders. */
	FORGET(at);
	FORGET(lane);
	if (at > MAX_L3 + sizeof(*p) + MAX_STRIPES * STRIPE_LEN || lane >= LANES)
		return 0;
	mask = data + at;
	bits = data + at + offsetof(struct stripe, bits) + lane * sizeof(*bits);
	slot = data + at + offsetof(struct stripe, slots) + lane * sizeof(*slot);
	if ((void *)(mask + 1) > end || (void *)(bits + 1) > end || (void *)(slot + 1) > end ||
	    !(bpf_ntohl(*mask) >> lane & 1))
		return 0;
	w->bits = bpf_ntohl(*bits);
	w->page = bpf_ntohl(*mask) >> LANES;
	w->slot = rank_of(*slot, lane, ranking_of(p->header.flags));
	w->rank = w->slot < PAGE_SLOTS ? w->page * PAGE_SLOTS + w->slot : NO_RANK;
	return 1;
}

/* walked_slot returns the slot of the pair of the last step, or NULL if the job is
 * being removed. */
static __always_inline __s64 *walked_slot(struct walk *w)
{
	void *bank = bank_of(w->bank);
	__u32 slot = w->slot;
	struct page *page;

	page = bank ? bpf_map_lookup_elem(bank, &w->page) : NULL;
	return page ? &page->slots[slot % PAGE_SLOTS] : NULL;
}

/* slot_of returns the slot of a pair. It is in the page for any frame, but
 * among the job's slots only if survey has checked it. */
static __always_inline __s64 *slot_of(const struct stripe *s, __u32 lane, __u32 dense,
				      struct page *page)
{
	__u32 at = bpf_ntohs(s->slots[lane]);

	/* clang knows that it has 16 bits, Linux 6.1's verifier does not. */
	FORGET(at);
	return &page->slots[(dense ? at : at * LANES + lane) % PAGE_SLOTS];
}
