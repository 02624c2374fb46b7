/* The lock of a job. It guards everything that frames change in a job: sums,
 * duplicate filters, and counters of the job and its senders. Under the lock,
 * they use plain reads and writes: an atomic addition takes four times as long
 * as a plain one, and a frame has up to 220.
 *
 * The lock's word also counts the swaps of the banks, and so names the current
 * bank: the count's lowest bit. So a program gets the current bank with the atomic
 * operation that takes the lock, and the loader can change the bank without the
 * lock: it adds a swap and waits until the lock has been free once. Then no
 * program uses the old bank: later ones have seen the new one. A killed loader
 * leaves no lock held. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "stripes.h"

#define LOCKED 1U /* the bits above it are the number of swaps, modulo 2^31 */

struct waiting {
	struct job *job;
	__s32 swaps;
};

/* try_lock takes the lock if it is free. It returns the number of swaps, or
 * -1. */
static __always_inline __s32 try_lock(struct job *job)
{
	__u32 word = *(volatile __u32 *)&job->lock;

	/* An atomic operation that returns a value is a full barrier. */
	if (word & LOCKED || __sync_val_compare_and_swap(&job->lock, word, word | LOCKED) != word)
		return -1;
	return word >> 1;
}

static long spin(__u32 i, void *arg)
{
	struct waiting *w = arg;

	w->swaps = try_lock(w->job);
	return w->swaps >= 0;
}

__noinline __s32 wait_for_lock(struct job *job)
{
	struct waiting w = { .job = job, .swaps = -1 };

	if (job)
		bpf_loop(SPINS, spin, &w, 0);
	return w.swaps;
}

/* lock takes a job's lock. It returns the number of swaps, or -1 if it could not
 * take the lock: then the frame must be dropped. */
static __always_inline __s32 lock(struct job *job)
{
	__s32 swaps = try_lock(job);

	return swaps >= 0 ? swaps : wait_for_lock(job);
}

static __always_inline void unlock(struct job *job)
{
	/* Returning the old word makes this a release, also on arm64. Not a
	 * store, because the loader may change the bank at any time. */
	__u32 word = __sync_fetch_and_sub(&job->lock, LOCKED);

	FORGET(word);
}
