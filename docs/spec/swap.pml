/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange of a job's banks beside programs that add to them.
 *
 * Shown: a harvest that begins when all frames are acknowledged holds what no
 * harvest before it held, and no frame's addition is lost or counted twice;
 * programs and daemon may be suspended anywhere, and the daemon be killed anywhere
 * without stopping the programs.
 *
 *	Program   bpf/lock.h lock, unlock; bpf/aggregate.c; bpf/apply.h
 *	Daemon    control/harvest_bank.go freeze, clear; control/harvest_stream.go harvest;
 *	          bpf/harvest.go Swap, Clear; bpf/jobtable.go turnBanks, awaitFree
 *
 * A frame adds 1 to one slot, by a read and a write: the lock has to keep other
 * programs away meanwhile. A harvest reads and clears only what programs have touched
 * (bpf/touch.h).
 */

#ifndef FRAMES
#define FRAMES 4
#endif
#define CPUS 2
#ifndef TIMEOUTS
#define TIMEOUTS 2	/* swaps that fail, because the lock was seen taken at the deadline */
#endif

/* The mutants. */
#define NO_WAIT 1	/* Swap returns at once */
#define BANK_FIRST 2	/* a program reads which bank is current before it takes the lock */
#define TURN_BACK 3	/* a swap that fails makes the old bank the current one again */
#define ANSWER 4	/* a swap that took two tries answers requests made in between */
#define MARK 5		/* what is left to harvest is counted from the number of applied frames at a swap */
#define ADD_LATE 6	/* a program adds after it has given the lock back */
#define HOLD_LOCK 7	/* the daemon takes the lock to change the bank */
#define TOUCH_LATE 8	/* a program says after it has given the lock back which slots it has touched */
#define TOUCH_OTHER 9	/* it says so of the other bank */
#ifndef MUTANT
#define MUTANT 0
#endif

/* The word of the lock. */
bit locked, current;

byte sum[2];		/* the slot, in both banks */
bit touched[2];		/* its block */
byte tally[2];		/* frames */
byte applied;		/* frames: JobCounters.Applied */

byte frames = FRAMES;	/* that are yet to come */
byte acked;
byte taken;		/* frames that the daemon has counted in harvests: job.taken */
byte harvested;		/* what left in harvests */
bool killed;		/* the daemon is no more */

inline take()
{
#if MUTANT == BANK_FIRST
	bank = current;
	atomic { !locked -> locked = 1 }
#else
	atomic { !locked -> locked = 1; bank = current }
#endif
}

inline add()
{
	read = sum[bank];
	d_step { sum[bank] = read + 1; tally[bank]++ }
}

inline touch()
{
#if MUTANT == TOUCH_OTHER
	touched[1 - bank] = 1
#else
	touched[bank] = 1
#endif
}

active [CPUS] proctype Program()
{
	bit bank;
	byte read;

	do
	:: atomic { frames > 0 -> frames-- }
		take();
#if MUTANT == ADD_LATE
		applied++;
		locked = 0;
		add();
		touch();
#elif MUTANT == TOUCH_LATE
		add();
		applied++;
		locked = 0;
		touch();
#else
		add();
		touch();
		applied++;
		locked = 0;
#endif
		acked++
	:: else -> break
	od
}

active proctype Daemon()
{
	byte count;			/* applied frames */
	byte timeouts = TIMEOUTS;
	bit old;			/* the bank that is harvested */
	bool turned;			/* the banks are exchanged, and a program may use the old one */
	bool now;			/* this harvest answers who asked for all that is acknowledged */

again:	do
	:: if
#if MUTANT == ANSWER
	   :: now = (acked == FRAMES)
#else
	   :: !turned -> now = (acked == FRAMES)
	   :: turned		/* What came in between is in the other bank. */
#endif
	   fi;
		/* freeze */
		count = applied;
		if
		:: count == taken && !turned -> goto done	/* empty: the banks stay */
		:: else
		fi;
		/* Swap */
		if
		:: !turned ->
#if MUTANT == HOLD_LOCK
			atomic { !locked -> locked = 1 };
			old = current; current = !current;
			locked = 0;
#else
			atomic { old = current; current = !current };
#endif
			turned = true
		:: else
		fi;
#if MUTANT != NO_WAIT
		if
		:: !locked
		:: atomic { locked && timeouts > 0 -> timeouts-- };
#if MUTANT == TURN_BACK
			current = !current; turned = false;
#endif
			goto again
		fi;
#endif
		turned = false;
		/* The sums are read and sent, the server applies them; Clear. */
		if
		:: touched[old] -> harvested = harvested + sum[old]; sum[old] = 0; touched[old] = 0
		:: else
		fi;
#if MUTANT == MARK
		taken = count;
#else
		taken = taken + tally[old];
#endif
		tally[old] = 0;
done:		if
		:: now ->
			assert(harvested == FRAMES);	/* NOTHING LOST, NOTHING DOUBLED */
			break
		:: else
		fi
	od unless { killed }
}

/* The daemon is killed at some moment, or never. */
active proctype Fate()
{
	if
	:: killed = true
	:: skip
	fi
}

/* Whatever the daemon does, every frame is acknowledged. */
ltl served { <> (acked == FRAMES) }
