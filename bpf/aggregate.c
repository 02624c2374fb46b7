//go:build ignore

/* The aggregator as an XDP program. What it does is defined by the Go package
 * aggregator, whose Model it must equal bit for bit; the order of its checks is
 * part of that. */

#include "add.h"
#include "admission.h"
#include "checksum.h"
#include "filter.h"
#include "lock.h"
#include "parse.h"
#include "reply.h"

static __always_inline int refuse_global(struct xdp_md *ctx, __u32 l3, __u32 code, __u32 value)
{
	COUNT(refused[code]);
	return refuse(ctx, l3, REFUSAL(code, 0, value));
}

/* refuse_job also counts for the sender, if that is admitted. The caller does
 * not hold the job's lock. */
static __always_inline int refuse_job(struct xdp_md *ctx, __u32 l3, struct job *job,
				      struct sender *s, __u64 why)
{
	__sync_fetch_and_add(&job->refused[why >> 48 & 0xf], 1);
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
	COUNT(truncated);
	return 0;
damaged:
	COUNT(bad_checksum);
	return 0;
}

/* What a HOT frame is like, as far as can be told without the job's lock. */
struct judged {
	__u32 seq;
	__u32 flags;
	__u32 found; /* by survey */
	__u64 fresh; /* why it is refused if it was not applied before, or 0 */
	__u64 again; /* why it is refused if it was, or 0 */
};

/* apply applies a HOT frame, unless it was applied before, or returns why it is
 * refused: then it has changed nothing. The sums that the frame asks for replace
 * its values. The caller holds the job's lock. */
static __always_inline __u64 apply(struct xdp_md *ctx, __u32 l3, const struct judged *f,
				   struct job *job, struct sender *sender, struct bank *bank)
{
	__u32 *place = place_of(sender, f->seq), pairs = f->found & PAIR_COUNT;
	__u64 why;

	if (is_fresh(*place, f->seq)) {
		why = f->fresh ? f->fresh : add(ctx, l3, job, bank, f->found);
		if (why)
			return why;
		*place = f->seq;
		bank->frames++;
		bank->pairs += pairs;
		job->applied++;
		job->pairs += pairs;
		sender->applied++;
		sender->pairs += pairs;
	} else {
		if (f->again)
			return f->again;
		job->duplicates++;
		sender->duplicates++;
	}
	if (f->flags & FLAG_WANT_SUM)
		put_sums(ctx, l3, job, bank);
	return 0;
}

/* hot decides about a HOT frame of an admitted sender. */
static __always_inline int hot(struct xdp_md *ctx, __u32 l3, struct packet *p, struct job *job,
			       struct sender *sender)
{
	__u32 id = bpf_ntohs(p->header.job), n = stripe_count(body_length(p));
	struct judged f = { .seq = bpf_ntohl(p->header.seq), .flags = p->header.flags };
	struct bank *bank;
	__s32 current;
	__u64 why;

	if (bpf_ntohs(p->header.epoch) != job->epoch)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_WRONG_EPOCH, 0, job->epoch));
	if (n == 0 || n > job->max_stripes)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_LENGTH, 0, job->max_stripes));
	if (f.flags & FLAG_WANT_SUM && job->mode != MODE_FETCHADD)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_MODE, 0, 0));
	f.found = survey(ctx, l3, job);
	if (!(job->layouts & (f.flags & FLAG_DENSE ? LAYOUT_DENSE : LAYOUT_ALIGNED)) ||
	    f.found & BAD_MASK)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_LAYOUT, 0, 0));
	if (!(f.found & PLAIN)) {
		f.fresh = diagnose(ctx, l3, job);
		/* The answer to a duplicate may carry sums, so the ranks are
		 * checked although nothing is added. */
		f.again = f.flags & FLAG_WANT_SUM ? diagnose_ranks(ctx, l3, job) : 0;
	}

	current = lock(job);
	if (current < 0)
		goto raced;
	bank = bank_of(id, current);
	if (!bank) {
		unlock(job);
		goto raced;
	}
	why = apply(ctx, l3, &f, job, sender, bank);
	unlock(job);
	if (why)
		return refuse_job(ctx, l3, job, sender, why);
	return f.flags & FLAG_WANT_SUM ? acknowledge_sums(ctx, l3) : acknowledge(ctx, l3);
raced: /* or the job is being removed */
	__sync_fetch_and_add(&job->raced, 1);
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
	struct job *job;
	__u32 type;

	if ((void *)ip + ENVELOPE_LEN > end || data + sizeof(struct ethernet) > end)
		return XDP_DROP;
	if (!intact(ctx, l3, ip, end))
		return XDP_DROP;
	if (bpf_ntohs(p->udp.length) < sizeof(struct udp) + HEADER_LEN || (void *)(p + 1) > end) {
		COUNT(too_short);
		return XDP_DROP;
	}
	type = p->header.version_type & 0xf;
	if (type == TYPE_ACK || type == TYPE_ERROR) {
		/* Of any version: two aggregators that answer each other's
		 * answers would never stop. */
		COUNT(unexpected);
		return XDP_DROP;
	}
	if (p->header.version_type >> 4 != VERSION)
		return refuse_global(ctx, l3, CODE_WRONG_VERSION, VERSION);
	if (type != TYPE_HOT)
		return refuse_global(ctx, l3, CODE_TYPE, 0);
	job = job_of(bpf_ntohs(p->header.job));
	if (!job)
		return refuse_global(ctx, l3, CODE_UNKNOWN_JOB, 0);
	sender = sender_of(data, p);
	if (!sender)
		return refuse_job(ctx, l3, job, NULL, REFUSAL(CODE_UNKNOWN_SENDER, 0, 0));
	return hot(ctx, l3, p, job, sender);
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
		COUNT(passed);
	else
		COUNT(forwarded);
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
	COUNT(passed);
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
