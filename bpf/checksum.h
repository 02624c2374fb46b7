/* Internet checksums (RFC 1071). Words are summed in memory byte order: a
 * one's-complement sum is the same in either order. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "stripes.h"

/* fold takes the sum of up to 2^16 words. Its first addition leaves less than
 * 2^32 + 2^16, the second no more than 0x1fffe, and the third 16 bits. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* sum_words adds n 32-bit words. 64 bits hold the sum of 2^32 of them, so no
 * carry is handled. n must be constant: the loop is unrolled. */
static __always_inline __u64 sum_words(const void *words, int n)
{
	const __u32 *w = words;
	__u64 even = 0, odd = 0;

#pragma unroll
	for (int i = 0; i + 1 < n; i += 2) {
		even += w[i];
		odd += w[i + 1];
	}
	if (n & 1)
		even += w[n - 1];
	return even + odd;
}

/* sum_stripes sums the n whole stripes after the Libra header. */
__noinline __u64 sum_stripes(struct xdp_md *ctx, __u32 l3, __u32 n)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	struct stripe *s;
	__u64 sum = 0;

	if (!p)
		return 0;
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		if (i >= n || (void *)(s + 1) > end)
			break;
		sum += sum_words(s, STRIPE_LEN / 4);
	}
	return sum;
}

struct tail {
	struct xdp_md *ctx;
	__u32 offset;
	__u32 length;
	__u64 sum;
};

/* sum_chunk adds the next up to CHUNK bytes of a tail. */
static long sum_chunk(__u32 i, void *arg)
{
	struct tail *t = arg;
	void *end = (void *)(long)t->ctx->data_end;
	__u32 left = t->length - i * CHUNK;
	__u32 at = t->offset + i * CHUNK;
	void *p;

	if (at > MAX_OFFSET)
		return 1;
	p = (void *)(long)t->ctx->data + at;
	if (left >= CHUNK) {
		if (p + CHUNK > end)
			return 1;
		t->sum += sum_words(p, CHUNK / 4);
		return 0;
	}
	for (int j = 0; j < CHUNK - 1; j++) {
		if (j >= left || p + j + 1 > end)
			break;
		/* The tail begins at an even offset of the summed bytes, so
		 * byte j counts as the first or the second of a word. */
		t->sum += bpf_htons(*(__u8 *)(p + j) << (j & 1 ? 0 : 8));
	}
	return 1;
}

/* sum_tail adds any number of bytes from an offset of the frame on. It is for
 * bodies other than HOT frames: it takes a call for every chunk. */
__noinline __u64 sum_tail(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	struct tail t = { .ctx = ctx, .offset = offset, .length = length };

	bpf_loop((length & 0xffff) / CHUNK + 1, sum_chunk, &t, 0);
	return t.sum;
}
