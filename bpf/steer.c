//go:build ignore

/* Steers a host's Libra frames to its AF_XDP sockets, one per receive queue.
 * Everything else, and what arrives on a queue without a socket, goes to the
 * kernel untouched. */

#include "parse.h"

/* The UDP port, in network byte order; set before loading. */
volatile const __be16 port;

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp")
int steer(struct xdp_md *ctx)
{
	__u32 l3;

	if (classify(ctx, port, &l3) == FOREIGN)
		return XDP_PASS;
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "GPL";
