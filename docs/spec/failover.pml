/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of hot gradients when an aggregator, a worker or the server dies.
 *
 * Shown, whatever dies or is suspected when: a gradient is never added twice, a step
 * that is committed holds each gradient of it, and training ends.
 *
 * The server alone decides what counts. A generation is one instance of the job at one
 * aggregator. A fence ends it: no harvest of it is applied from then on.
 *
 *	settle	the aggregator is dead, silent or drained: after the fence, each worker asks for
 *		its mark, which names its frames in the harvests that were applied. It sends the
 *		others of its log to the server, as rows, and goes on with the next generation,
 *		or without.
 *	rewind	a worker or the server is dead: the open step is dropped, and all workers are
 *		admitted anew, at the server too. They discard their logs and repeat the step.
 *
 * A worker's log has the frames that it has sent and does not know to be committed: the
 * server has not told it that a harvest with them was applied.
 *
 * That a flow applies a frame once is flow.pml's part, that a bank is frozen whole is
 * swap.pml's, that a harvest is sent again under its number is cluster.pml's. As in
 * flow.pml, the network is all that was ever sent.
 *
 * The product has all of it (docs/failures.md), but for hosts that drop a step in place of repeating it: the marks
 * in aggregator/mark.go, bpf/marks.go and control/harvest_marks.go, the log in transport, fences in
 * control/generation.go and cluster/node/fence.go, rewinds in control/rewind.go and
 * cluster/node/rewind.go.
 *
 * With -DENTERS the next generation begins as it does in the product: the server keeps the marks of
 * the last generation that has ended only, so another one begins when all workers have settled.
 * Until a worker has entered it, its frames go to the server. After a rewind it begins at any time.
 *
 * With -DWITHDRAWALS=n aggregators withdraw workers that live: the filter is gone, and frames of the worker
 * are refused. The worker may not know it. Its mark is in the next harvest alone, and the server keeps it.
 *
 * A gradient is a bit: that of frame f of worker w in step k. Every action is one step of
 * the model and, faults aside, none is possible for ever: so if training can stop, the
 * model stops in an invalid end state.
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef FRAMES
#define FRAMES 1	/* of a worker in a step */
#endif
#ifndef STEPS
#define STEPS 1
#endif
#ifndef GENS
#define GENS 3		/* generations */
#endif
#ifndef FENCES
#define FENCES 2	/* of aggregators that may be alive */
#endif
#ifndef WORKER_CRASHES
#define WORKER_CRASHES 0
#endif
#ifndef SERVER_CRASHES
#define SERVER_CRASHES 0
#endif
#ifndef LOG
#define LOG 9		/* frames that a worker's log holds */
#endif
#ifndef AGAIN
#define AGAIN 1		/* harvests that are asked for when the request is answered */
#endif

#ifndef WITHDRAWALS
#define WITHDRAWALS 0
#endif

/* The mutants. */
#define NO_FENCE 1	/* a harvest is applied after the fence */
#define STALE_MARK 2	/* a worker settles by a mark that it asked for before the fence */
#define LATE_MARK 3	/* a mark is read when the harvest leaves, not as at the swap */
#define EARLY_COMMIT 4	/* arrivals from before the fence commit the step */
#define SAME_EPOCH 5	/* a rewind keeps the admissions at the server */
#define SUMS_FIRST 6	/* sums and marks are applied in two calls */
#define MARK_FIRST 7	/* in two calls, in the other order */
#define FREE_ON_ACK 8	/* an acknowledged frame leaves the log */
#define KEEP_BANK 9	/* a rewind keeps the generation, with its banks */
#define STALE_TICKET 10	/* a harvest answers an older request than the newest */
#define LATE_STEP 11	/* a late copy of a worker's arrival counts as one after the fence */
#define LEAVE_EARLY 12	/* a worker leaves with frames in its log */
#define EARLY_BEGIN 13	/* a generation begins before all workers have settled */
#define FORGET_MARK 14	/* a harvest lacks the mark of a worker that is withdrawn */
#define REPLACE_MARKS 15	/* the server forgets the marks that a harvest lacks */
#ifndef MUTANT
#define MUTANT 0
#endif

#ifdef LIVES_ON
#define FORGETS false
#else
#define FORGETS (MUTANT == 0)
#endif

#define none GENS	/* no generation: hot frames go to the server */
#define all_of(k) (((1 << (WORKERS * FRAMES)) - 1) << ((k) * WORKERS * FRAMES))
#define own(w, k) (((1 << FRAMES) - 1) << (((k) * WORKERS + (w)) * FRAMES))
#define count(x) (((x) & 1) + (((x) >> 1) & 1) + (((x) >> 2) & 1) + (((x) >> 3) & 1))
#define training (step < STEPS)

/* The generations. */
bool dead[GENS];
byte sent[GENS];	/* frames in its network */
byte seen[GENS];	/* applied: they are acknowledged */
#if WITHDRAWALS > 0
byte away[GENS];	/* those of workers that are withdrawn */
byte named[GENS];	/* those of which a harvest has had the last mark */
byte withdrawals = WITHDRAWALS;
#endif
byte bank[GENS];	/* the current one */
bool under_way[GENS];	/* a harvest; its aggregator may have died since: */
byte sums[GENS], mark[GENS], ticket[GENS];	/* the newest request that it answers, 0: none */
bool half[GENS];	/* of a mutant: one of its two calls is done */

/* The workers. */
bool down[WORKERS];
byte rewound[WORKERS];	/* how often */
byte at[WORKERS];	/* step */
byte uses[WORKERS];	/* generation */
byte did[WORKERS];	/* of the step: sent anywhere */
byte log[WORKERS];	/* sent to the generation that it uses, and not known to be committed */
byte rows[WORKERS];	/* of the step: sent to the server */
bool arrived[WORKERS];
bool copied[WORKERS];	/* of a mutant: another copy of its arrival is in the network */

/* The server. */
bool up = true;
byte step, saved;	/* committed steps; of the checkpoint */
byte rewinds;
byte gen;
#ifdef ENTERS
byte last = none;	/* that has ended */
byte coming = none;	/* that may begin */
#endif
byte open;		/* the sums of the open step */
bool asked, answered;	/* a harvest for the commit */
byte marks[GENS];	/* of the harvests that were applied */
byte rows_sent, rows_seen;
byte rows_late;		/* of a mutant: sent before a rewind */

byte fences = FENCES, worker_crashes = WORKER_CRASHES, server_crashes = SERVER_CRASHES, again = AGAIN;
byte b, rest, i;	/* of steps that nothing interrupts */

/* pick chooses one of a set of frames. */
inline pick(set)
{
	if
	:: (set) & 1 -> b = 1
	:: (set) & 2 -> b = 2
	:: (set) & 4 -> b = 4
	:: (set) & 8 -> b = 8
	fi
}

/* A fenced aggregator may live on (-DLIVES_ON), but nobody reads any more what it holds; except in
 * a mutant. */
inline forget(g)
{
	if
	:: FORGETS && g < GENS ->
		dead[g] = true; bank[g] = 0; under_way[g] = false; sums[g] = 0; mark[g] = 0; ticket[g] = 0
	:: else
	fi
}

inline next_generation()
{
	forget(gen);
	if
	:: gen < GENS -> gen++
	:: else
	fi
}

/* ---- The worker ---- */

inline begin(w, k, g)
{
	at[w] = k; uses[w] = g;
	did[w] = 0; log[w] = 0; rows[w] = 0; arrived[w] = false; copied[w] = false
}

/* Neither dead nor called back by a rewind. */
#define goes_on(w) (training && !down[w] && rewound[w] == rewinds)
#define todo(w) (own(w, at[w]) & ~did[w])
#define has(w) (uses[w] != none)
#ifdef ENTERS
#define may_settle(w) (uses[w] == last)
#define then none
#else
#define may_settle(w) (uses[w] != gen)
#define then gen
#endif

active [WORKERS] proctype Worker()
{
	byte w = _pid;

end:	do
	:: d_step { training && worker_crashes > 0 && !down[w] ->
		worker_crashes--;
		begin(w, 0, 0); down[w] = true
	   }
	:: d_step { training && up && rewound[w] < rewinds ->
		down[w] = false; rewound[w] = rewinds;		/* admitted anew */
		begin(w, step, gen)
	   }
	:: d_step { goes_on(w) && up && has(w) && may_settle(w) && !(MUTANT == LEAVE_EARLY && copied[w]) ->
		/* Settle. */
#if MUTANT == STALE_MARK
		rest = log[w];
#elif MUTANT == FREE_ON_ACK
		rest = log[w] & ~marks[uses[w]] & ~seen[uses[w]];
#else
		rest = log[w] & ~marks[uses[w]];
#endif
		rows[w] = rows[w] | rest; rows_sent = rows_sent | rest;
		rest = 0; log[w] = 0; uses[w] = then;
		arrived[w] = (arrived[w] && MUTANT == EARLY_COMMIT)
	   }
#ifdef ENTERS
	:: d_step { goes_on(w) && up && !has(w) && gen != none -> uses[w] = gen }
#endif
	:: d_step { goes_on(w) && up && has(w) && (log[w] & marks[uses[w]]) != 0 ->
		log[w] = log[w] & ~marks[uses[w]]		/* the server tells its mark */
	   }
	:: d_step { goes_on(w) && todo(w) != 0 && !arrived[w] && (!has(w) || count(log[w]) < LOG) ->
		b = todo(w) & -todo(w);
		did[w] = did[w] | b;
		if
		:: has(w) -> log[w] = log[w] | b; sent[uses[w]] = sent[uses[w]] | b
		:: else -> rows[w] = rows[w] | b; rows_sent = rows_sent | b
		fi;
		b = 0
	   }
	:: d_step { goes_on(w) && todo(w) == 0 && !arrived[w] && (rows[w] & ~rows_seen) == 0 &&
		    (log[w] == 0 || (log[w] & ~seen[uses[w]]) == 0) ->
		arrived[w] = true;				/* all is acknowledged */
		copied[w] = (MUTANT == LATE_STEP)
	   }
#if MUTANT == LEAVE_EARLY
	:: d_step { goes_on(w) && arrived[w] && !copied[w] -> copied[w] = true }	/* it has left */
#endif
#if MUTANT == LATE_STEP
	:: d_step { goes_on(w) && copied[w] && !arrived[w] -> arrived[w] = true }
#endif
	:: d_step { goes_on(w) && arrived[w] && up && step == at[w] + 1 ->
		begin(w, step, uses[w])				/* all that it did is committed */
	   }
	od
}

/* ---- The aggregator ---- */

#define exists(g) (training && g <= gen)
#define wanted(g) (asked && g == gen && (!answered || again > 0))

#if WITHDRAWALS > 0
#define refused(g) away[g]
#else
#define refused(g) 0
#endif

inline freeze(g)
{
	under_way[g] = true; sums[g] = bank[g]; bank[g] = 0;
#if WITHDRAWALS == 0
	mark[g] = seen[g]
#elif MUTANT == FORGET_MARK
	mark[g] = seen[g] & ~away[g]
#else
	mark[g] = seen[g] & ~named[g];
	named[g] = away[g]
#endif
}

active [GENS] proctype Aggregator()
{
	byte g = _pid - WORKERS;

end:	do
	:: atomic { exists(g) && !dead[g] && (sent[g] & ~seen[g] & ~refused(g)) != 0 ->
		pick(sent[g] & ~seen[g] & ~refused(g));
		assert((bank[g] & b) == 0);			/* NOTHING DOUBLED */
		bank[g] = bank[g] | b; seen[g] = seen[g] | b; b = 0
	   }
	:: d_step { exists(g) && !dead[g] && !under_way[g] && bank[g] != 0 -> freeze(g) }
	:: d_step { exists(g) && !dead[g] && !under_way[g] && wanted(g) ->
		if
		:: answered -> again--
		:: else
		fi;
		freeze(g);
		ticket[g] = step + 1
	   }
#if WITHDRAWALS > 0
	:: d_step { exists(g) && !dead[g] && withdrawals > 0 && away[g] == 0 ->	/* workers are alike: the first */
		withdrawals--; away[g] = own(0, 0) | own(0, 1)
	   }
#endif
	:: d_step { exists(g) && !dead[g] -> dead[g] = true; bank[g] = 0 }
	od
}

/* ---- The server ---- */

inline add(what)
{
	assert((open & (what)) == 0);				/* NOTHING DOUBLED */
	open = open | (what)
}

#if MUTANT == LATE_MARK
#define told(g) seen[g]
#else
#define told(g) mark[g]
#endif

inline answer(g)
{
	if
	:: g == gen && (ticket[g] == step + 1 || (MUTANT == STALE_TICKET && ticket[g] != 0)) -> answered = true
	:: else
	fi;
	under_way[g] = false; sums[g] = 0; mark[g] = 0; ticket[g] = 0; half[g] = false
}

inline rewind(k)
{
	step = k; open = 0; asked = false; answered = false; rewinds++;
#if MUTANT == SAME_EPOCH
	rows_late = rows_sent & ~rows_seen;
#endif
	rows_sent = 0; rows_seen = 0;
	if
	:: MUTANT == KEEP_BANK && gen < GENS -> sent[gen] = 0; seen[gen] = 0
#ifdef ENTERS
	:: MUTANT != KEEP_BANK && gen < GENS -> coming = gen + 1; forget(gen); last = gen; gen = none
	:: else
#else
	:: else -> next_generation()
#endif
	fi
}

#if MUTANT == EARLY_COMMIT
#define here(w) true
#elif defined(ENTERS)
#define here(w) (uses[w] == gen || uses[w] == none)
#else
#define here(w) (uses[w] == gen || (MUTANT == LEAVE_EARLY && copied[w]))
#endif
#define ready(w) (goes_on(w) && arrived[w] && at[w] == step && here(w))
#define gone(w) (down[w] && rewound[w] == rewinds)
#define settled(w) (!has(w) || rewound[w] != rewinds)	/* or not admitted yet */
#if WORKERS == 1
#define all_ready ready(0)
#define some_gone gone(0)
#define all_settled settled(0)
#else
#define all_ready (ready(0) && ready(1))
#define some_gone (gone(0) || gone(1))
#define all_settled (settled(0) && settled(1))
#endif

/* What the server knows of the frames in the harvests of a generation, with those of the newest. */
#if WITHDRAWALS > 0 && MUTANT != REPLACE_MARKS
#define merged(g) (marks[g] | told(g))
#else
#define merged(g) told(g)
#endif

#define may_apply(g) (under_way[g] && (g == gen || (MUTANT == NO_FENCE && g < gen)))

inline harvest(g)
{
#if MUTANT == SUMS_FIRST || MUTANT == MARK_FIRST
	if
	:: !half[g] ->
		half[g] = true;
		if
		:: MUTANT == SUMS_FIRST -> add(sums[g])
		:: else -> marks[g] = merged(g)
		fi
	:: else ->
		if
		:: MUTANT == SUMS_FIRST -> marks[g] = merged(g)
		:: else -> add(sums[g])
		fi;
		answer(g)
	fi
#else
	add(sums[g]); marks[g] = merged(g);
	answer(g)
#endif
}

active proctype Server()
{
	do
	:: atomic { up && may_apply(0) -> harvest(0) }
#if GENS > 1
	:: atomic { up && may_apply(1) -> harvest(1) }
#endif
#if GENS > 2
	:: atomic { up && may_apply(2) -> harvest(2) }
#endif
	:: atomic { up && (rows_sent & ~rows_seen) != 0 ->
		pick(rows_sent & ~rows_seen);
		add(b); rows_seen = rows_seen | b; b = 0
	   }
#if MUTANT == SAME_EPOCH
	:: atomic { up && rows_late != 0 ->
		pick(rows_late);
		add(b); rows_late = rows_late & ~b; b = 0
	   }
#endif
	:: d_step { up && gen != none && (fences > 0 || dead[gen]) ->
		/* Fence. Without a standby, the job goes on without an aggregator. */
		asked = (asked && MUTANT == EARLY_COMMIT); answered = false;
#ifdef ENTERS
		if
		:: fences > 0 -> fences--; coming = gen + 1
		:: else
		fi;
		forget(gen); last = gen; gen = none
	   }
	:: d_step { up && gen == none && coming != none && (all_settled || MUTANT == EARLY_BEGIN) ->
		gen = coming; coming = none; asked = false; answered = false
	   }
#else
		if
		:: fences > 0 -> fences--; next_generation()
		:: else -> forget(gen); gen = none
		fi
	   }
#endif
	:: d_step { up && all_ready && !asked -> asked = true; answered = (gen == none) }
	:: atomic { up && all_ready && asked && (answered || gen == none) ->
		assert(open == all_of(step));			/* NOTHING LOST, NOTHING DOUBLED */
		step++; open = 0; asked = false; answered = false;
		if
		:: step == STEPS -> break
		:: else
		fi
	   }
	:: d_step { up && saved < step && server_crashes > 0 -> saved = step }
	:: d_step { up && some_gone -> rewind(step) }
	:: d_step { up && server_crashes > 0 -> server_crashes--; up = false }
	:: d_step { !up -> rewind(saved); up = true }
	od
}

/* When faults end, training ends. */
ltl ends { <> (step == STEPS) }
