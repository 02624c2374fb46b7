/* Maps that the program and its loader share. The loader writes jobs, senders,
 * banks, routes and ports; the program counts. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "frame.h"

/* The aggregator's address, in network byte order; set before loading. */
volatile const __be32 address;
volatile const __be16 port;

/* The budget of each sender for costly frames, see budget.h; set before
 * loading. */
volatile const __u64 budget_cost;
volatile const __u64 budget_depth;

enum mode {
	MODE_COMBINE,
	MODE_FETCHADD,
	MODE_SYNC,
	MODE_ACKED,
};

enum layout {
	LAYOUT_ALIGNED = 1,
	LAYOUT_DENSE = 2,
};

enum arithmetic {
	EXACT,
	LUT,
	FIXED,
};

#define CACHE_LINE 64

/* What a bank contains. */
struct tally {
	__u64 frames;
	__u64 pairs;
};

struct job {
	/* Set by the loader. */
	__u32 slots; /* 0: no such job */
	__u32 max_stripes;
	__s32 exp; /* a slot counts units of 2^exp */
	__u8 mode;
	__u8 layouts;
	__u8 arithmetic;
	__u8 workers; /* that take part in rounds */
	/* 2^31 minus the bits of the least magnitude that is not plain, twice;
	 * see survey. */
	__u64 below_limit;
	/* The number of the last page, and the slots of a page: of those before
	 * the last one, and of that. */
	__u32 last_page;
	__u32 page_slots[2];
	__u32 unused1;
	/* 2^31 minus the number of slots that a lane may name, aligned and
	 * dense, in a page before the last one and in that, for two lanes per
	 * word. In survey's order of lanes, high half before low: 0 2, 1 3, 4 6,
	 * 5 7, ... 17 19, 20 21. */
	__u64 below_slots[2][2][LANES / 2];

	/* Changed by frames under the lock. */
	__u32 lock __attribute__((aligned(CACHE_LINE))); /* see lock.h */
	__u32 unused2;
	__u64 applied;
	__u64 pairs;
	__u64 duplicates;
	__u64 rounds;
	__u64 scales;
	__u64 saturated;
	__u64 reported; /* see scale.h */
	__u32 iteration;
	__u8 largest;
	__u8 previous;
	struct tally tallies[BANKS];

	/* Counted by frames without the lock, atomically. */
	__u64 raced __attribute__((aligned(CACHE_LINE)));
	__u64 throttled;
	__u64 refused[CODES]; /* by code */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_JOBS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct job);
} jobs SEC(".maps");

struct sender_key {
	__u16 job;
	__u16 sender;
};

/* The index of a sender's state. Preallocated, so that admission fails at once
 * if memory is short. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SENDERS); /* the loader may change it */
	__type(key, struct sender_key);
	__type(value, __u32); /* index of senders */
} admissions SEC(".maps");

/* The state of an admission. The loader reuses an entry for another sender only
 * when no program runs that may have found the former one; a hash map would
 * reuse its memory at once. */
struct sender {
	struct sender_key key;
	__be32 ip;
	__u16 mac[3];
	__be16 port;
	__be16 epoch;  /* of this admission's frames */
	__u8 position; /* among the workers that take part in rounds */
	__u8 wary;     /* set after a frame that was not plain, see add.h */
	__u32 turn;    /* of the filters, see filter.h */
	__u64 spent;   /* see budget.h */
	__u64 applied;
	__u64 pairs;
	__u64 duplicates;
	__u64 refused; /* counted without the lock, atomically */
	/* Two filters, see filter.h. */
	__u64 seen[FILTERS][2 * WINDOW];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SENDERS); /* as of admissions */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct sender);
} senders SEC(".maps");

/* A page of a bank is one map value, so that one lookup serves a whole stripe:
 * a lookup for each slot costs more than the addition. The pages of a bank are
 * contiguous; user space reads and clears them through mmap. */
struct page {
	__s64 slots[PAGE_SLOTS];
};

struct bank_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* a job's has an entry for each of its pages */
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__type(key, __u32);
	__type(value, struct page);
};

/* The two banks of each job, at job * BANKS + the index of the bank. Functions
 * pass this key. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_JOBS * BANKS);
	__type(key, __u32);
	__array(values, struct bank_map);
} banks SEC(".maps");

/* The round of a group of slots, see sync.h. */
struct group {
	__u64 contributed; /* a bit for each worker, by position */
	__u64 taken;       /* in mode "acked": likewise, of those that have the result */
	__u32 round;
	__u32 unused;
};

struct group_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* a job's has an entry for each of its groups */
	__uint(map_flags, BPF_F_INNER_MAP);
	__type(key, __u32);
	__type(value, struct group);
};

/* The groups of each job with rounds. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_JOBS);
	__type(key, __u32);
	__array(values, struct group_map);
} groups SEC(".maps");

/* Counters that belong to no job. */
struct counters {
	__u64 passed;
	__u64 forwarded;
	__u64 truncated;
	__u64 bad_checksum;
	__u64 partial_checksum;
	__u64 too_short;
	__u64 unexpected;
	__u64 unanswered;
	__u64 out_of_bounds;
	__u64 refused[CODES]; /* by code */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counts SEC(".maps");

/* MAC address of a host (six bytes, then two zero bytes) to the index of the
 * interface behind which it is, if the bridge forwards frames there. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ROUTES); /* the loader changes it */
	__type(key, __u64);
	__type(value, __u32);
} routes SEC(".maps");

/* The interfaces that support XDP transmission, by index. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

struct port_set {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, __u32);
};

/* The ports of each job whose workers take part in rounds, see broadcast.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_JOBS);
	__type(key, __u32);
	__array(values, struct port_set);
} port_sets SEC(".maps");

#define COUNT(field)                                              \
	do {                                                      \
		__u32 zero__ = 0;                                 \
		struct counters *c__ =                            \
			bpf_map_lookup_elem(&counts, &zero__);    \
		if (c__)                                          \
			c__->field++;                             \
	} while (0)

/* drop_out_of_bounds drops a frame that ends before what an earlier check has
 * found in it. That never happens: the checks that lead here are for the
 * verifier, which does not know of the earlier one. It is global, so that they
 * take one instruction each. */
__noinline int drop_out_of_bounds(void)
{
	COUNT(out_of_bounds);
	return XDP_DROP;
}
