//go:build ignore
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The aggregator as an XDP program. The Go package aggregator defines its
 * behaviour: it must equal the package's Model bit for bit, including the order
 * of checks. */

#include "acked.h"
#include "admission.h"
#include "forward.h"
#include "parse.h"
#include "scale.h"
#include "times.h"

static __always_inline int refuse_global(struct xdp_md *ctx, __u32 l3, __u32 code, __u32 value)
{
	COUNT(refused[code]);
	return refuse(ctx, l3, REFUSAL(code, 0, value));
}

/* refuse_job also counts for the sender, if it is admitted. The caller does not
 * hold the job's lock. */
static __always_inline int refuse_job(struct xdp_md *ctx, __u32 l3, struct job *job,
				      struct sender *s, __u64 why)
{
	__sync_fetch_and_add(&job->refused[why >> 48 & (CODES - 1)], 1);
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
	__u64 sum, pseudo;

	if (total < ENVELOPE_LEN || (void *)ip + total > end || length < sizeof(*udp) ||
	    length > total - sizeof(*ip))
		goto truncated;
	if (fold(sum_words(ip, sizeof(*ip) / 4)) != 0xffff || !udp->check)
		goto damaged;
	/* Pseudo header (addresses, protocol, length), then the UDP header. */
	pseudo = sum_words(&ip->src, 2) + bpf_htons(PROTO_UDP) + udp->length;
	sum = pseudo + sum_words(udp, 2);
	n = stripe_count(length - sizeof(*udp) - HEADER_LEN);
	if (n && (void *)(p + 1) <= end)
		sum += sum_words(&p->header, HEADER_LEN / 4) + sum_stripes(ctx, l3, n);
	else
		sum += sum_tail(ctx, l3 + ENVELOPE_LEN, length - sizeof(*udp));
	if (fold(sum) == 0xffff)
		return 1;
	/* CHECKSUM_PARTIAL of the kernel: left to a network card. */
	if (udp->check == fold(pseudo)) {
		COUNT(partial_checksum);
		return 0;
	}
	goto damaged;
truncated:
	COUNT(truncated);
	return 0;
damaged:
	COUNT(bad_checksum);
	return 0;
}

/* answer_all turns the answer to a frame into one for all senders of its job. */
static __always_inline int answer_all(__u32 id, int action)
{
	return action == XDP_TX ? to_all(id) : action;
}

/* process_hot processes a HOT frame of an admitted sender. */
static __always_inline int process_hot(struct xdp_md *ctx, __u32 l3, struct packet *p,
				       struct job *job, struct sender *sender)
{
	__u32 id = bpf_ntohs(p->header.job), n = stripe_count(body_length(p)), round;
	struct judged f = { .seq = bpf_ntohl(p->header.seq), .flags = p->header.flags };
	enum answer answer = PLAIN_ACK;
	struct group *group = NULL;
	__u64 why, cover = 0;
	__u32 bank, gone;
	__s32 swaps;

	if (n == 0 || n > job->max_stripes)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_LENGTH, 0, job->max_stripes));
	if (f.flags & FLAG_WANT_SUM && job->mode != MODE_FETCHADD)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_MODE, 0, 0));
	f.found = count_pairs(ctx, l3, job->last_page);
	if (!(job->layouts & (f.flags & FLAG_DENSE ? LAYOUT_DENSE : LAYOUT_ALIGNED)) ||
	    f.found & BAD_MASK)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_LAYOUT, 0, 0));
	f.found |= is_surveyed(job, sender, f.flags) ? survey(ctx, l3, job) : PLAIN;
	if (job->mode >= MODE_SYNC) {
		why = misshapen(ctx, l3, job);
		if (why)
			return refuse_job(ctx, l3, job, sender, why);
		group = group_at(id, job, first_slot(ctx, l3));
		if (!group)
			goto raced;
	}
	if (!(f.found & PLAIN)) {
		if (!pay_budget(sender))
			goto throttled;
		f.fresh = diagnose(ctx, l3, job);
		/* The answer to a duplicate may contain sums, so the ranks are
		 * checked although nothing is added. */
		f.again = f.flags & FLAG_WANT_SUM ? diagnose_ranks(ctx, l3, job) : 0;
	}

	swaps = lock(job);
	if (swaps < 0)
		goto raced;
	round = group ? group->round : swaps;
	bank = id * BANKS + (round & (job->mode != MODE_ACKED));
	keep_filter(sender, swaps);
	why = group ? contribute(ctx, l3, &f, job, sender, group, bank, &answer)
		    : apply(ctx, l3, &f, job, sender, bank, &answer);
	if (answer == COVER_ACK)
		cover = group ? group->contributed : cover_of(sender, f.seq);
	/* A bank that is there now was there before. */
	gone = !bank_of(bank) || (group && !bank_of(result_bank(job, bank)));
	unlock(job);

	if (gone)
		goto raced;
	if (why == THROTTLED)
		goto throttled;
	if (why)
		return refuse_job(ctx, l3, job, sender, why);
	switch (answer) {
	case PLAIN_ACK:
		return APPLIED | acknowledge(ctx, l3, 0);
	case COVER_ACK:
		return APPLIED | acknowledge_cover(ctx, l3, 0, cover);
	case NOTHING: /* applied, and counted so */
		break;
	case SUMS:
		return APPLIED | acknowledge_sums(ctx, l3, 0);
	case SUMS_TO_ALL:
		if (from_all(ctx, l3, round))
			return drop_out_of_bounds();
		return APPLIED | answer_all(id, acknowledge_sums(ctx, l3, FLAG_ALL));
	}
	return APPLIED | XDP_DROP;
raced: /* or the job is being removed */
	__sync_fetch_and_add(&job->raced, 1);
	return XDP_DROP;
throttled:
	__sync_fetch_and_add(&job->throttled, 1);
	return XDP_DROP;
}

/* process_scale processes a SCALE frame of an admitted sender. */
static __always_inline int process_scale(struct xdp_md *ctx, __u32 l3, struct packet *p,
					 struct job *job, struct sender *sender)
{
	__u32 id = bpf_ntohs(p->header.job), iteration;
	struct report *r = (void *)(p + 1);
	struct decision d = {};
	__u64 why;

	if (body_length(p) != sizeof(*r) || (void *)(r + 1) > (void *)(long)ctx->data_end)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_LENGTH, 0, sizeof(*r)));
	if (job->arithmetic != FIXED || !job->workers)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_MODE, 0, 0));
	if (r->exponent == INFINITE_EXPONENT)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_NOT_FINITE, 0, 0));
	iteration = bpf_ntohl(r->iteration);
	if (lock(job) < 0) {
		__sync_fetch_and_add(&job->raced, 1);
		return XDP_DROP;
	}
	why = decide(job, sender, iteration, r->exponent, &d);
	unlock(job);
	if (why)
		return refuse_job(ctx, l3, job, sender, why);
	if (!d.made)
		return acknowledge(ctx, l3, FLAG_SCALE);
	if (!d.to_all)
		return acknowledge_scale(ctx, l3, &d);
	if (from_all(ctx, l3, iteration))
		return drop_out_of_bounds();
	return answer_all(id, acknowledge_scale(ctx, l3, &d));
}

/* process_taken processes a TAKEN frame of an admitted sender. It is global so
 * that its variables do not add to the stack of process_frame. */
__noinline int process_taken(struct xdp_md *ctx, __u32 l3, struct job *job, struct sender *sender)
{
	void *end;
	struct packet *p = packet_at(ctx, l3, &end);
	struct taken *t = (void *)(p + 1);
	enum answer answer = PLAIN_ACK;
	__u32 id, first, round, gone;
	struct group *group;
	__u64 why, takers;

	if (!p || !job || !sender)
		return drop_out_of_bounds();
	id = bpf_ntohs(p->header.job);
	if (body_length(p) != sizeof(*t) || (void *)(t + 1) > end)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_LENGTH, 0, sizeof(*t)));
	if (job->mode != MODE_ACKED)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_MODE, 0, 0));
	first = bpf_ntohs(t->first);
	round = bpf_ntohl(t->round);
	if (first * LANES >= job->slots)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_SLOT_RANGE, 0, job->slots));
	if (first % job->max_stripes)
		return refuse_job(ctx, l3, job, sender, REFUSAL(CODE_LAYOUT, 0, 0));
	group = group_at(id, job, first);
	if (!group || lock(job) < 0)
		goto raced;
	why = take(job, sender, group, id * BANKS, first, round, &answer);
	takers = group->taken;
	gone = !bank_of(id * BANKS); /* as of a HOT frame */
	unlock(job);

	if (gone)
		goto raced;
	if (why)
		return refuse_job(ctx, l3, job, sender, why);
	switch (answer) {
	case NOTHING:
		return XDP_DROP;
	case COVER_ACK:
		return acknowledge_cover(ctx, l3, FLAG_TAKEN, takers);
	case SUMS_TO_ALL:
		if (from_all(ctx, l3, round))
			return drop_out_of_bounds();
		return answer_all(id, confirm(ctx, l3, FLAG_ALL));
	default:
		return confirm(ctx, l3, 0);
	}
raced: /* or the job is being removed */
	__sync_fetch_and_add(&job->raced, 1);
	return XDP_DROP;
}

/* process_frame processes a frame that is addressed to the aggregator. It is a
 * global function so that the verifier checks it once, for any l3. The result
 * is an action, perhaps with APPLIED. */
__noinline int process_frame(struct xdp_md *ctx, __u32 l3)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv4 *ip = data + (l3 & L3_MASK);
	struct packet *p = (void *)ip;
	struct sender *sender;
	struct job *job;
	__u32 type;

	if ((void *)ip + ENVELOPE_LEN > end || data + sizeof(struct ethernet) > end)
		return drop_out_of_bounds();
	if (!intact(ctx, l3, ip, end))
		return XDP_DROP;
	if (bpf_ntohs(p->udp.length) < sizeof(struct udp) + HEADER_LEN || (void *)(p + 1) > end) {
		COUNT(too_short);
		return XDP_DROP;
	}
	type = p->header.version_type & 0xf;
	if (type == TYPE_ACK || type == TYPE_ERROR) {
		/* Of any version: two aggregators answering each other's
		 * answers would never stop. */
		COUNT(unexpected);
		return XDP_DROP;
	}
	if (p->header.version_type >> 4 != VERSION)
		return refuse_global(ctx, l3, CODE_WRONG_VERSION, VERSION);
	if (type != TYPE_HOT && type != TYPE_SCALE && type != TYPE_TAKEN)
		return refuse_global(ctx, l3, CODE_TYPE, 0);
	job = job_of(bpf_ntohs(p->header.job));
	if (!job)
		return refuse_global(ctx, l3, CODE_UNKNOWN_JOB, 0);
	sender = sender_of(data, p);
	if (!sender)
		return refuse_job(ctx, l3, job, NULL, REFUSAL(CODE_UNKNOWN_SENDER, 0, 0));
	if (p->header.epoch != sender->epoch)
		return refuse_job(ctx, l3, job, sender,
				  REFUSAL(CODE_WRONG_EPOCH, 0, bpf_ntohs(sender->epoch)));
	if (type == TYPE_SCALE)
		return process_scale(ctx, l3, p, job, sender);
	if (type == TYPE_TAKEN)
		return process_taken(ctx, l3, job, sender);
	return process_hot(ctx, l3, p, job, sender);
}

/* process_timed is process_frame, and counts the time of a drawn frame. */
static __always_inline int process_timed(struct xdp_md *ctx, __u32 l3, struct packet *p, void *end)
{
	__u64 begin = 0;
	__u32 id = 0;
	int result;

	if (draw_below && (void *)(p + 1) <= end && is_drawn(bpf_ntohl(p->header.seq))) {
		id = bpf_ntohs(p->header.job);
		begin = bpf_ktime_get_ns();
	}
	result = process_frame(ctx, l3);
	if (begin && result & APPLIED)
		count_time(id, bpf_ktime_get_ns() - begin);
	return result & ~APPLIED;
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
			return process_timed(ctx, l3, (void *)ip, end);
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
