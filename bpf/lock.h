/* The lock of a job. Whatever frames change in a job - sums, the duplicate
 * filters of its senders, its counters and theirs - they change while they hold
 * it, with plain reads and writes: an atomic addition takes four times as long
 * as a plain one, and a frame has up to 220.
 *
 * The lock's word also names the current bank. So a program that takes the lock
 * learns the bank by the same atomic operation, and the loader, which changes
 * the bank, need not take the lock: it changes the bit and waits until the lock
 * has been free once. The program that held it then has left the old bank, and
 * all that came later saw the new one. A loader that is killed leaves
 * nothing locked. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "stripes.h"

#define LOCKED 1U
#define BANK 2U /* set: the second bank is current */

/* How often a program looks for the lock to become free: some tens of
 * microseconds, which is many frames. If the CPU that holds it is a virtual one
 * and was suspended, it may take milliseconds. */
#define SPINS 16384

struct waiting {
	struct job *job;
	__s32 bank;
};

/* try_lock takes the lock if it is free. It returns the index of the current
 * bank, or -1. */
static __always_inline __s32 try_lock(struct job *job)
{
	__u32 word = *(volatile __u32 *)&job->lock;

	/* An atomic operation that returns a value is a full barrier. */
	if (word & LOCKED || __sync_val_compare_and_swap(&job->lock, word, word | LOCKED) != word)
		return -1;
	return word & BANK ? 1 : 0;
}

static long spin(__u32 i, void *arg)
{
	struct waiting *w = arg;

	w->bank = try_lock(w->job);
	return w->bank >= 0;
}

__noinline __s32 wait_for_lock(struct job *job)
{
	struct waiting w = { .job = job, .bank = -1 };

	if (job)
		bpf_loop(SPINS, spin, &w, 0);
	return w.bank;
}

/* lock takes a job's lock. It returns the index of the current bank, or -1 if
 * the lock was not to be had: then the frame must be dropped. */
static __always_inline __s32 lock(struct job *job)
{
	__s32 bank = try_lock(job);

	return bank >= 0 ? bank : wait_for_lock(job);
}

static __always_inline void unlock(struct job *job)
{
	/* Asking for the old word makes this a release, on arm64 too. Not a
	 * store, because the loader changes the bank at any time. */
	__u32 word = __sync_fetch_and_sub(&job->lock, LOCKED);

	FORGET(word);
}
