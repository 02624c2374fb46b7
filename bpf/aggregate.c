//go:build ignore

/* The aggregator as an XDP program. What it does is defined by the Go package
 * aggregator, whose Model it must equal bit for bit; the order of its checks is
 * part of that. */

#include "add.h"
#include "admission.h"
#include "checksum.h"
#include "filter.h"
#include "parse.h"
#include "reply.h"

static __always_inline int refuse_global(struct xdp_md *ctx, __u32 l3, __u32 code, __u32 value)
{
	COUNT(GLOBAL, refused[code]);
	return refuse(ctx, l3, REFUSAL(code, 0, value));
}

/* refuse_job also counts for the sender, if that is admitted. */
static __always_inline int refuse_job(struct xdp_md *ctx, __u32 l3, __u32 job, struct sender *s,
				      __u64 why)
{
	COUNT(job, refused[why >> 48 & 0xf]);
	if (s)
		__sync_fetch_and_add(&s->refused, 1);
	return refuse(ctx, l3, why);
}

/* intact verifies lengths and checksums. It returns 0 and counts if the frame
 * is damaged. */
static __always_inline int intact(struct xdp_md *ctx, __u32 l3, struct ipv4 *ip, void *end)
{
	struct udp *udp = (void *)(ip + 1);
	struct packet *p = (void *)ip;
	__u32 total = bpf_ntohs(ip->total), length = bpf_ntohs(udp->length), n;
	__u64 sum;

	if (total < ENVELOPE_LEN || (void *)ip + total > end || length < sizeof(*udp) ||
	    length > total - sizeof(*ip))
		goto truncated;
	if (fold(sum_words(ip, sizeof(*ip) / 4)) != 0xffff || !udp->check)
		goto damaged;
	/* Pseudo header (addresses, protocol, length), then the UDP header. */
	sum = sum_words(&ip->src, 2) + bpf_htons(PROTO_UDP) + udp->length + sum_words(udp, 2);
	n = stripe_count(length - sizeof(*udp) - HEADER_LEN);
	if (n && (void *)(p + 1) <= end)
		sum += sum_words(&p->header, HEADER_LEN / 4) + sum_stripes(ctx, l3, n);
	else
		sum += sum_tail(ctx, l3 + ENVELOPE_LEN, length - sizeof(*udp));
	if (fold(sum) != 0xffff)
		goto damaged;
	return 1;
truncated:
	COUNT(GLOBAL, truncated);
	return 0;
damaged:
	COUNT(GLOBAL, bad_checksum);
	return 0;
}

/* hot applies a HOT frame of an admitted sender, unless it was applied before.
 * A frame that it refuses has changed nothing. */
static __always_inline int hot(struct xdp_md *ctx, __u32 l3, struct packet *p, struct job *job,
			       struct sender *sender, struct bank *bank)
{
	__u32 id = bpf_ntohs(p->header.job), seq = bpf_ntohl(p->header.seq), flags = p->header.flags;
	__u32 n = stripe_count(body_length(p)), found, pairs;
	struct counters *c = counters_of(id);
	__u64 old, outcome, why, *entry;

	if (bpf_ntohs(p->header.epoch) != job->epoch)
		return refuse_job(ctx, l3, id, sender, REFUSAL(CODE_WRONG_EPOCH, 0, job->epoch));
	if (n == 0 || n > job->max_stripes)
		return refuse_job(ctx, l3, id, sender, REFUSAL(CODE_LENGTH, 0, job->max_stripes));
	if (flags & FLAG_WANT_SUM && job->mode != MODE_FETCHADD)
		return refuse_job(ctx, l3, id, sender, REFUSAL(CODE_MODE, 0, 0));
	found = survey(ctx, l3, job);
	if (!(job->layouts & (flags & FLAG_DENSE ? LAYOUT_DENSE : LAYOUT_ALIGNED)) ||
	    found & BAD_MASK)
		return refuse_job(ctx, l3, id, sender, REFUSAL(CODE_LAYOUT, 0, 0));

	entry = entry_of(sender, seq);
	old = *(volatile __u64 *)entry;
	switch (judge(old, seq)) {
	case DUPLICATE:
		/* The answer may carry sums, so the ranks are checked although
		 * nothing is added. */
		why = flags & FLAG_WANT_SUM ? diagnose_ranks(ctx, l3, job) : 0;
		if (why)
			return refuse_job(ctx, l3, id, sender, why);
		if (c)
			c->duplicates++;
		__sync_fetch_and_add(&sender->duplicates, 1);
		goto acknowledge;
	case BUSY:
		goto raced;
	case FRESH:
		break;
	}
	if (!(found & PLAIN)) {
		why = diagnose(ctx, l3, job);
		if (why)
			return refuse_job(ctx, l3, id, sender, why);
	}
	if (!claim(entry, old, seq))
		goto raced;
	outcome = found & PLAIN ? add(ctx, l3, job, bank) : add_rest(ctx, l3, job, bank, 0);
	if ((__u32)outcome != ADDED) {
		*(volatile __u64 *)entry = old;
		if (c && outcome & WRAPPED)
			c->undo_overflow++;
		if ((__u8)outcome == CONTENDED)
			goto raced;
		return refuse_job(ctx, l3, id, sender, REFUSAL(CODE_OVERFLOW, outcome >> 32, 0));
	}
	pairs = found & PAIR_COUNT;
	__sync_fetch_and_add(&bank->frames, 1);
	__sync_fetch_and_add(&bank->pairs, pairs);
	settle(entry, seq);
	if (c) {
		c->applied++;
		c->pairs += pairs;
	}
	__sync_fetch_and_add(&sender->applied, 1);
	__sync_fetch_and_add(&sender->pairs, pairs);
acknowledge:
	if (flags & FLAG_WANT_SUM)
		return acknowledge_sums(ctx, l3, job, bank);
	return acknowledge(ctx, l3);
raced:
	if (c)
		c->raced++;
	return XDP_DROP;
}

/* serve decides about a frame that is addressed to the aggregator. It is a
 * global function so that the verifier checks it once, for any l3. */
__noinline int serve(struct xdp_md *ctx, __u32 l3)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv4 *ip = data + (l3 & 0x1f);
	struct packet *p = (void *)ip;
	struct sender *sender;
	struct bank *bank;
	struct job *job;
	__u32 id, type;
	int action;

	if ((void *)ip + ENVELOPE_LEN > end || data + sizeof(struct ethernet) > end)
		return XDP_DROP;
	if (!intact(ctx, l3, ip, end))
		return XDP_DROP;
	if (bpf_ntohs(p->udp.length) < sizeof(struct udp) + HEADER_LEN || (void *)(p + 1) > end) {
		COUNT(GLOBAL, too_short);
		return XDP_DROP;
	}
	type = p->header.version_type & 0xf;
	if (type == TYPE_ACK || type == TYPE_ERROR) {
		/* Of any version: two aggregators that answer each other's
		 * answers would never stop. */
		COUNT(GLOBAL, unexpected);
		return XDP_DROP;
	}
	if (p->header.version_type >> 4 != VERSION)
		return refuse_global(ctx, l3, CODE_WRONG_VERSION, VERSION);
	if (type != TYPE_HOT)
		return refuse_global(ctx, l3, CODE_TYPE, 0);
	id = bpf_ntohs(p->header.job);
	job = job_of(id);
	if (!job)
		return refuse_global(ctx, l3, CODE_UNKNOWN_JOB, 0);
	sender = sender_of(data, p);
	if (!sender)
		return refuse_job(ctx, l3, id, NULL, REFUSAL(CODE_UNKNOWN_SENDER, 0, 0));
	bank = enter_bank(id, job);
	if (!bank) {
		/* The job is being removed, or banks were swapped three times
		 * meanwhile. The sender repeats the frame. */
		COUNT(id, raced);
		return XDP_DROP;
	}
	action = hot(ctx, l3, p, job, sender, bank);
	leave_bank(bank);
	return action;
}

/* forward sends a Libra frame between hosts on by its destination address. */
static __always_inline int forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	__u64 mac = 0;
	__u32 *out;
	int action;

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	__builtin_memcpy(&mac, eth->dst, sizeof(eth->dst));
	out = bpf_map_lookup_elem(&routes, &mac);
	action = out ? bpf_redirect_map(&ports, *out, XDP_PASS) : XDP_PASS;
	if (action == XDP_PASS)
		COUNT(GLOBAL, passed);
	else
		COUNT(GLOBAL, forwarded);
	return action;
}

SEC("xdp")
int aggregate(struct xdp_md *ctx)
{
	void *data, *end;
	struct ipv4 *ip;
	__u32 l3;

	switch (classify(ctx, port, &l3)) {
	case IPV4:
		data = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		ip = data + l3;
		if ((void *)(ip + 1) <= end && ip->dst == address)
			return serve(ctx, l3);
		/* fallthrough */
	case IPV6:
		return forward(ctx);
	case FOREIGN:
		break;
	}
	COUNT(GLOBAL, passed);
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
