//go:build ignore
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Counts the aggregator program's frames that the kernel did not send. XDP_TX
 * and redirects are executed in batches after the program has returned, so only
 * tracepoints report failures. */

#include "bounds.h"
#include "kernel.h"

/* The fields of the kernel's structures that are read here; the loader finds
 * their offsets (CO-RE). */
#define RELOCATED __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} RELOCATED;

struct net {
	struct ns_common ns;
} RELOCATED;

typedef struct {
	struct net *net;
} RELOCATED possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} RELOCATED;

struct bpf_prog_aux {
	__u32 id;
} RELOCATED;

struct bpf_prog {
	struct bpf_prog_aux *aux;
} RELOCATED;

/* The aggregator's program; set before loading. */
volatile const __u32 program;

/* An interface with the aggregator's program. */
struct attached {
	__u32 namespace; /* inode number */
	__u32 index;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, struct attached);
	__type(value, __u32);
} attachments SEC(".maps");

struct failures {
	__u64 answers;
	__u64 redirects;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct failures);
} failed SEC(".maps");

static __always_inline void count_failures(__u32 answers, __u32 redirects)
{
	__u32 zero = 0;
	struct failures *f = bpf_map_lookup_elem(&failed, &zero);

	if (!f)
		return;
	f->answers += answers;
	f->redirects += redirects;
}

static __always_inline int is_attached(struct net_device *dev)
{
	struct attached key = { .namespace = dev->nd_net.net->ns.inum, .index = dev->ifindex };

	return bpf_map_lookup_elem(&attachments, &key) != NULL;
}

/* (net_device *dev, bpf_prog *xdp, u32 act). In generic mode it is also the
 * failure of a redirect. */
SEC("tp_btf/xdp_exception")
int on_exception(__u64 *args)
{
	struct bpf_prog *xdp = (void *)args[1];

	if ((__u32)args[2] == XDP_TX && xdp->aux->id == program)
		count_failures(1, 0);
	return 0;
}

/* (net_device *dev, int sent, int drops, int err): answers that a driver had
 * accepted. */
SEC("tp_btf/xdp_bulk_tx")
int on_bulk_tx(__u64 *args)
{
	__s32 drops = args[2];

	if (drops > 0 && is_attached((void *)args[0]))
		count_failures(drops, 0);
	return 0;
}

/* (net_device *dev, bpf_prog *xdp, void *tgt, int err, ...): a frame that was
 * not queued. */
SEC("tp_btf/xdp_redirect_err")
int on_redirect_err(__u64 *args)
{
	struct bpf_prog *xdp = (void *)args[1];

	if (xdp->aux->id == program)
		count_failures(0, 1);
	return 0;
}

/* (net_device *from, net_device *to, int sent, int drops, int err) */
SEC("tp_btf/xdp_devmap_xmit")
int on_devmap_xmit(__u64 *args)
{
	__s32 drops = args[3];

	if (drops > 0 && is_attached((void *)args[0]))
		count_failures(0, drops);
	return 0;
}

char _license[] SEC("license") = "GPL";
