/* How long frames take. Frames are drawn by their number, as workers draw
 * theirs: Go's package telemetry has the draw and the buckets. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "maps.h"

/* Set before loading: a frame is drawn if its product with GOLDEN is below
 * this, 0 for none. */
volatile const __u64 draw_below;

#define GOLDEN 0x9E3779B1U
#define TIME_BUCKETS 272

/* The largest time of each bucket in nanoseconds; set before loading. */
volatile const __u64 time_bounds[TIME_BUCKETS];

/* The times of a job's frames. */
struct times {
	__u64 sum; /* ns */
	__u64 counts[TIME_BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_JOBS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct times);
} job_times SEC(".maps");

/* APPLIED marks the action of a HOT frame that is applied, or was before. */
#define APPLIED 0x100

static __always_inline int is_drawn(__u32 seq)
{
	return (__u64)(seq * GOLDEN) < draw_below;
}

/* count_time adds the time of a job's frame. It is global, so that the verifier
 * checks it once. */
__noinline int count_time(__u32 id, __u64 ns)
{
	struct times *t = bpf_map_lookup_elem(&job_times, &id);
	__u32 bucket = 0, step;

	if (!t)
		return 0;
	/* The buckets whose bounds are below the time. */
	for (step = 256; step; step /= 2) {
		__u32 next = bucket + step;

		if (next < TIME_BUCKETS && time_bounds[next - 1] < ns)
			bucket = next;
	}
	if (bucket >= TIME_BUCKETS) /* for the verifier */
		return 0;
	__sync_fetch_and_add(&t->counts[bucket], 1);
	__sync_fetch_and_add(&t->sum, ns);
	return 0;
}
