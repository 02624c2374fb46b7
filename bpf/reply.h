/* Answers. The received frame becomes the answer. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "checksum.h"
#include "survey.h"

/* body_of cuts or extends the frame to a payload of len bytes and returns its
 * body, after the Libra header, with size bytes that may be accessed. It returns
 * NULL and counts if the receive buffer has no room after a frame that is shorter
 * than its answer. Earlier pointers into the frame are invalid. */
static __always_inline void *body_of(struct xdp_md *ctx, __u32 l3, __u32 len, __u32 size)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 have = end - data;
	struct packet *p;

	FORGET(have); /* the verifier does not accept truncating the pointers to 32 bits first */
	if (bpf_xdp_adjust_tail(ctx, l3 + ENVELOPE_LEN + len - have)) {
		COUNT(unanswered);
		return NULL;
	}
	p = packet_at(ctx, l3, &end);
	if (!p || (void *)(p + 1) + size > end) {
		drop_out_of_bounds();
		return NULL;
	}
	return p + 1;
}

static __always_inline struct header *header_of(void *body)
{
	return body - HEADER_LEN;
}

/* seal swaps the addresses in a frame's headers and returns the verdict.
 * payload is the payload's length and sum its checksum sum. It sums the values
 * that it writes rather than memory: loading a word that was just stored in
 * parts is slow. */
__noinline int seal(struct xdp_md *ctx, __u32 l3, __u32 payload, __u64 sum)
{
	struct ethernet *eth = (void *)(long)ctx->data;
	struct packet *p = (void *)eth + (l3 & L3_MASK);
	__be16 length = bpf_htons(sizeof(struct udp) + payload), from;
	__be16 total = bpf_htons(ENVELOPE_LEN + payload);
	void *end = (void *)(long)ctx->data_end;
	__u64 addresses;
	__u16 check;
	__be32 ip;

	if ((void *)(p + 1) > end || (void *)(eth + 1) > end)
		return drop_out_of_bounds();
	from = p->udp.src;
	ip = p->ip.src;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		__u16 mac = eth->src[i];

		eth->src[i] = eth->dst[i];
		eth->dst[i] = mac;
	}
	addresses = (__u64)ip + p->ip.dst;
	p->ip.tos = 0;
	p->ip.total = total;
	p->ip.id = 0;
	p->ip.fragment = bpf_htons(IPV4_DONT_FRAGMENT);
	p->ip.ttl = HOP_LIMIT;
	p->ip.src = p->ip.dst;
	p->ip.dst = ip;
	p->ip.check = ~fold(addresses + total + bpf_htons(IPV4_PLAIN_HEADER << 8) +
			    bpf_htons(IPV4_DONT_FRAGMENT) + bpf_htons(HOP_LIMIT << 8 | PROTO_UDP));
	/* The pseudo header contains addresses, protocol and length. */
	check = ~fold(sum + addresses + bpf_htons(PROTO_UDP) + 2 * (__u64)length + from + p->udp.dst);
	p->udp.src = p->udp.dst;
	p->udp.dst = from;
	p->udp.length = length;
	p->udp.check = check ? check : 0xffff; /* 0 means no checksum (RFC 768) */
	return XDP_TX;
}

/* set_type sets the type and returns the sum of the header. */
static __always_inline __u64 set_type(struct header *h, enum type type, __u8 flags)
{
	h->version_type = VERSION << 4 | type;
	h->flags = flags;
	return bpf_htons((VERSION << 4 | type) << 8 | flags) + h->job +
	       sum_words(&h->sender, (HEADER_LEN - offsetof(struct header, sender)) / 4);
}

/* refuse answers with an ERROR, which is already counted. */
__noinline int refuse(struct xdp_md *ctx, __u32 l3, __u64 why)
{
	struct refusal *r = body_of(ctx, l3, ERROR_LEN, sizeof(*r));
	__u64 sum;

	if (!r)
		return XDP_DROP;
	sum = set_type(header_of(r), TYPE_ERROR, 0);
	r->code = bpf_htons(why >> 48);
	r->index = bpf_htons(why >> 32 & 0xffff);
	r->value = bpf_htonl(why);
	return seal(ctx, l3, ERROR_LEN, sum + sum_words(r, sizeof(*r) / 4));
}

/* acknowledge answers with an ACK without body. */
static __always_inline int acknowledge(struct xdp_md *ctx, __u32 l3, __u8 flags)
{
	void *body = body_of(ctx, l3, HEADER_LEN, 0);

	if (!body)
		return XDP_DROP;
	return seal(ctx, l3, HEADER_LEN, set_type(header_of(body), TYPE_ACK, flags));
}

/* acknowledge_cover answers with an ACK that lists applied frames, or positions
 * of workers. */
static __always_inline int acknowledge_cover(struct xdp_md *ctx, __u32 l3, __u8 flags, __u64 frames)
{
	struct cover *c = body_of(ctx, l3, COVER_LEN, sizeof(*c));
	__u64 sum;

	if (!c)
		return XDP_DROP;
	sum = set_type(header_of(c), TYPE_ACK, flags | FLAG_COVER);
	c->frames = bpf_cpu_to_be64(frames);
	return seal(ctx, l3, COVER_LEN, sum + sum_words(c, sizeof(*c) / 4));
}

/* put_values replaces the values of a stripe by the sums in their slots.
 * Unused lanes, which count_pairs has zeroed, stay zero. */
static __always_inline void put_values(struct stripe *s, struct ranking r, __u32 exact, __s64 exp,
				       const struct page *page)
{
	__u32 mask = bpf_ntohl(s->mask);

	FORGET(r.lanes);
#pragma unroll
	for (__u32 lane = 0; lane < LANES; lane++) {
		__s64 sum = page->slots[rank_of(s->slots[lane], lane, r) % PAGE_SLOTS];
		__u32 used = -(mask >> lane & 1);

		s->bits[lane] = bpf_htonl((exact ? to_float(sum, exp) : sum) & used);
	}
}

/* put_numbers is put_sums for slots in the format of the wire. */
__noinline int put_numbers(struct xdp_md *ctx, __u32 l3, __u32 last_page, __u32 key)
{
	void *end, *bank = bank_of(key);
	struct packet *p = packet_at(ctx, l3, &end);
	struct page *page;
	struct ranking r;
	struct stripe *s;
	__u32 n;

	if (!p || !bank)
		return 0;
	n = stripe_count(body_length(p));
	r = ranking_of(p->header.flags);
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		page = page_of(bank, s, last_page);
		if (!page)
			break;
		put_values(s, r, 0, 0, page);
	}
	return 0;
}

/* put_exact replaces the values of the stripe at an offset by exact sums. */
__noinline int put_exact(struct xdp_md *ctx, __u32 at, __u32 flags, const struct job *job,
			 const struct page *page)
{
	struct stripe *s = stripe_at(ctx, at);

	if (s && job && page)
		put_values(s, ranking_of(flags), 1, job->exp, page);
	return 0;
}

/* put_sums replaces the values of a frame by the sums in their slots. The caller
 * holds the job's lock. */
__noinline int put_sums(struct xdp_md *ctx, __u32 l3, const struct job *job, __u32 key)
{
	void *end, *bank = bank_of(key);
	struct packet *p = packet_at(ctx, l3, &end);
	__u32 n, flags, last = 0, at = first_stripe(l3);
	struct page *page = NULL;
	struct stripe *s;

	if (!p || !job || !bank)
		return 0;
	if (job->arithmetic != EXACT)
		return put_numbers(ctx, l3, job->last_page, key);
	flags = p->header.flags;
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++, at += STRIPE_LEN) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		if (!page || page_number(s) != last)
			page = page_of(bank, s, job->last_page);
		if (!page)
			break;
		last = page_number(s);
		put_exact(ctx, at, flags, job, page);
	}
	return 0;
}

/* acknowledge_sums answers with an ACK whose sums are already in the frame. */
static __always_inline int acknowledge_sums(struct xdp_md *ctx, __u32 l3, __u8 flags)
{
	struct header *h;
	struct packet *p;
	void *end, *body;
	__u32 n, len;
	__u64 sum;

	p = packet_at(ctx, l3, &end);
	if (!p)
		return drop_out_of_bounds();
	n = stripe_count(body_length(p));
	len = HEADER_LEN + n * STRIPE_LEN;
	body = body_of(ctx, l3, len, 0);
	if (!body)
		return XDP_DROP;
	h = header_of(body);
	sum = set_type(h, TYPE_ACK, flags | FLAG_SUM | (h->flags & FLAG_DENSE));
	return seal(ctx, l3, len, sum + sum_stripes(ctx, l3, n));
}
