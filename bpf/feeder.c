//go:build ignore
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Gives the aggregator's program a new frame in every iteration of a test run; see
 * feeder.go. */

#include "frame.h"

#define SEQ_AT (sizeof(struct ethernet) + sizeof(struct ipv4) + sizeof(struct udp) + 8)
#define CHECKSUM_AT (sizeof(struct ethernet) + sizeof(struct ipv4) + 6)

/* Set before loading, in bytes. */
volatile const __u32 length; /* of all frames */
volatile const __u32 last; /* number of frames, a power of two, less one */
volatile const __s32 longer; /* by how much answers are longer than frames */

struct stored {
	__u8 bytes[MAX_FRAME];
	__u32 sum; /* sum under the checksum, without the sequence number */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* the loader knows how many */
	__type(key, __u32);
	__type(value, struct stored);
} frames SEC(".maps");

/* The program under test. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} target SEC(".maps");

__u32 number; /* of the last frame */

SEC("xdp")
int feed(struct xdp_md *ctx)
{
	__u32 n = ++number, k = n & last, sum;
	struct stored *f = bpf_map_lookup_elem(&frames, &k);

	if (!f)
		return XDP_ABORTED;
	sum = f->sum + (n >> 16) + (n & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ((sum & 0xffff) + (sum >> 16)) ^ 0xffff;
	*(__be16 *)(f->bytes + CHECKSUM_AT) = bpf_htons(sum ? sum : 0xffff);
	*(__be32 *)(f->bytes + SEQ_AT) = bpf_htonl(n);
	/* The frame has become its own answer. */
	bpf_xdp_adjust_tail(ctx, length - bpf_xdp_get_buff_len(ctx));
	bpf_xdp_store_bytes(ctx, 0, f->bytes, length);
	bpf_tail_call(ctx, &target, 0);
	return XDP_ABORTED;
}

/* Only sets a frame's length to that of its answer, so that feed has to reset
 * it. */
SEC("xdp")
int idle(struct xdp_md *ctx)
{
	bpf_xdp_adjust_tail(ctx, longer);
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
