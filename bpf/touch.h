/* Which parts of a bank hold sums: a harvest reads and clears only these. Jobs of
 * one page have no such record: reading a page takes less time than keeping one. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "stripes.h"

#define BLOCK_SLOTS 64 /* that share a byte */

/* The blocks of a page: a byte is 1 if a frame was added to a slot of its block.
 * No struct, of which clang would describe nothing but the name here. */
typedef __u8 page_blocks[PAGE_SLOTS / BLOCK_SLOTS];

struct blocks_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* a job's has an entry for each of its pages */
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__type(key, __u32);
	__type(value, page_blocks);
};

/* The blocks of each bank, by the keys of banks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_JOBS * BANKS);
	__type(key, __u32);
	__array(values, struct blocks_map);
} bank_blocks SEC(".maps");

/* touch records the blocks of a frame that was added to a bank. The caller still
 * holds the job's lock, under which it was added: so when the loader has swapped
 * the banks and seen the lock free, the record of the frozen one is whole. */
__noinline int touch(struct xdp_md *ctx, __u32 l3, __u32 key)
{
	void *end, *map = bpf_map_lookup_elem(&bank_blocks, &key);
	struct packet *p = packet_at(ctx, l3, &end);
	struct ranking r;
	struct stripe *s;
	__u32 n;

	if (!p || !map)
		return 0;
	r = ranking_of(p->header.flags);
	n = stripe_count(body_length(p));
	s = stripes_of(p);
	for (__u32 i = 0; i < MAX_STRIPES; i++, s++) {
		__u32 number, mask;
		__u8 *touched;

		if (i >= n || (void *)(s + 1) > end)
			break;
		number = page_number(s);
		touched = bpf_map_lookup_elem(map, &number);
		if (!touched) /* beyond the job's, without pairs */
			continue;
		mask = bpf_ntohl(s->mask);
#pragma unroll
		for (__u32 lane = 0; lane < LANES; lane++) {
			__u32 at = rank_of(s->slots[lane], lane, r);

			FORGET(at);
			touched[at / BLOCK_SLOTS % sizeof(page_blocks)] |= mask >> lane & 1;
		}
	}
	return 0;
}
