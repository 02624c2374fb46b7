/* SPDX-License-Identifier: Apache-2.0 */
/* A job, from its workers' gradients to the server's checkpoint, with crashes.
 *
 * Shown, whatever crashes or disconnects when: a gradient is added to the weights
 * at most once. The weights of a synchronous job are at all times those of its
 * committed steps, each once; those of an asynchronous one (-DASYNC) have all steps
 * that its checkpoint counts, though a step may be taken again by a later life. When
 * faults end, training ends.
 *
 * That a flow applies a frame once is flow.pml's part, that a bank is frozen whole
 * is swap.pml's. Here a filter is the set of the frames that it has seen, and a
 * swap is one step. The network is, as in flow.pml, all that was ever sent: each
 * frame may arrive at any time, again, and in any order, also when its sender and
 * its receiver have been restarted since.
 *
 *	Worker	train/train.go, cluster/node/worker.go, cluster/node/membership.go
 *	Frames	aggregator/hot.go, bpf/apply.h, transport/server.go
 *	Switch	control/aggregator.go, control/job.go, control/harvest_bank.go,
 *		control/harvest_stream.go, control/roster.go
 *	Server	cluster/node/server.go, cluster/node/checkpoint.go, cluster/node/progress.go,
 *		control/harvester.go, control/server.go, control/barrier.go,
 *		ps/harvest.go, ps/commit.go, ps/snapshot.go
 *
 * A step of a worker is one hot and one cold frame. A gradient is a bit: that of
 * step k of life l. A life is one run of one worker's process.
 */

#ifndef WORKERS
#define WORKERS 1
#endif
#ifndef STEPS
#define STEPS 2		/* of the whole training, at most 3 */
#endif
#ifndef LIVES
#define LIVES 4		/* runs of workers' processes, all together */
#endif
#ifndef BREAKS
#define BREAKS 1	/* times that the harvest stream breaks */
#endif
#ifndef WORKER_CRASHES
#define WORKER_CRASHES 1
#endif
#ifndef SERVER_CRASHES
#define SERVER_CRASHES 1
#endif
#ifndef SWITCH_CRASHES
#define SWITCH_CRASHES 1	/* or leases that end because the server could not reach the switch */
#endif

/* The mutants. */
#define SAME_EPOCH 1	/* a new admission has the epoch of the one before */
#define NUMBER_ONLY 2	/* the store compares numbers of harvests of different instances */
#define BANKS_KEPT 3	/* a new instance begins with the banks of the former */
#define ACK_FIRST 4	/* the aggregator acknowledges a frame before it adds it */
#define CLEAR_EARLY 5	/* a bank is cleared when it is sent */
#define NEW_NUMBER 6	/* a harvest that is sent again gets another number */
#define NO_INSTANCE 7	/* a worker does not compare the instances of server and switch */
#define REJOIN 8	/* a synchronous job goes on with a worker that was restarted */
#define NO_NUMBER 9	/* neither side looks at the number of a harvest that comes again */
#define OPEN_SAVED 10	/* a checkpoint holds the sums of the open step */
#define STALE_TICKET 12	/* it also answers what was asked after it was frozen */
#define FILTER_KEPT 13	/* a new admission does not empty the filter */
#define SETTLE_ONCE 14	/* what a worker reports counts as harvested after one harvest */
#define NEVER_AGAIN 11	/* a harvest whose stream broke is not sent again */
#ifndef MUTANT
#define MUTANT 0
#endif

#define bit_of(l, k) (1 << ((l) * STEPS + (k)))
#define none 255

/* Lives. Life l is worker worker[l]'s; it begins with step from[l]. */
byte lives;
byte worker[LIVES], from[LIVES];
byte hot_epoch[LIVES], cold_epoch[LIVES];
byte sent[LIVES];		/* steps whose frames are in the network: step from + i is number i */

/* The switch: data plane and daemon. */
byte instances, epochs;		/* given out so far; the daemon's random starts do not collide */
byte job;			/* the instance that runs; 0 is none */
byte hot_admitted[WORKERS];	/* epoch of the admission; 0 is none */
byte hot_seen[WORKERS];		/* numbers that the filter has seen */
byte hot_acked[LIVES + 1];	/* by epoch: numbers of answers in the network */
int bank[2];
bit current;
bool frozen, pending;		/* of the latest harvest: it holds a bank; it is not acknowledged */
byte number;			/* of the latest harvest */
byte asked, ticket;		/* newest request of the stream; newest that is answered */
byte stream;			/* the one that is served */

/* The server. */
byte server;			/* which run of it, 0 before the first */
bool up;
byte owns;			/* its job's instance */
byte cold_admitted[WORKERS];
byte cold_seen[WORKERS];
byte cold_acked[LIVES + 1];
bool joined[WORKERS];		/* to this run */
bool arrived[WORKERS];		/* at the barrier of the step */
bool finished[WORKERS];
bool lost;			/* a worker left before it had finished */
byte step;			/* committed steps */
int open_hot, open_cold;	/* sums of the open step */
int weights_hot, weights_cold;
byte harvest_of, harvest;	/* instance and number of the last one applied: ps.harvestID */
byte applied;			/* number of the last one applied: Harvester.last */
byte wanted, answered;		/* tickets: Harvester.asked, answered */
#ifdef ASYNC			/* progress: how many steps each worker */
byte reported[WORKERS];		/* has had acknowledged, */
byte waiting[WORKERS];		/* had when the latest harvest was applied, */
byte settled[WORKERS];		/* had when the one before was: they are in the weights */
byte saved_steps[WORKERS];
#endif
bool asking;			/* the commit of the step waits for a harvest */
byte newest;			/* its stream */

/* The checkpoint, on the server's disk. */
byte saved_step;
int saved_hot, saved_cold;
byte saved_of, saved_harvest;

/* The harvest stream. Messages carry the stream that they belong to: those of a
 * broken one may still be read by the switch, or be lost. */
mtype = { BEGIN, NOW, DONE };
chan to_switch = [4] of { byte, mtype, byte };
chan to_server = [2] of { byte, byte, int, byte };	/* stream, number, sums, ticket */

byte breaks = BREAKS, worker_crashes = WORKER_CRASHES, server_crashes = SERVER_CRASHES, switch_crashes = SWITCH_CRASHES;
bool complete;			/* the training */

byte i, n, m, count_hot, count_cold;	/* of steps that nothing interrupts */

/* count counts the gradients of step n of worker i in sums. */
inline count(hot, cold)
{
	count_hot = 0; count_cold = 0;
	for (m : 0 .. LIVES - 1) {
		if
		:: m < lives && worker[m] == i ->
			count_hot = count_hot + ((hot >> (m * STEPS + n)) & 1);
			count_cold = count_cold + ((cold >> (m * STEPS + n)) & 1)
		:: else
		fi
	};
	m = 0
}

/* The sums hold the steps from first to after of each worker, each once. */
inline exact(hot, cold, first, after)
{
	for (n : 0 .. STEPS - 1) {
		for (i : 0 .. WORKERS - 1) {
			count(hot, cold);
			assert(count_hot == (first <= n && n < after));
			assert(count_cold == (first <= n && n < after))
		}
	};
	n = 0; i = 0; count_hot = 0; count_cold = 0
}

/* The sums hold the steps that the checkpoint counts. */
inline covered(hot, cold)
{
	for (i : 0 .. WORKERS - 1) {
		for (n : 0 .. STEPS - 1) {
			count(hot, cold);
			assert(n >= saved_steps[i] || count_hot > 0);
			assert(n >= saved_steps[i] || count_cold > 0)
		}
	};
	n = 0; i = 0; count_hot = 0; count_cold = 0
}

/* ---- The worker ---- */

#ifdef ASYNC
#define may_rejoin true
#define first_step reported[w]
#else
#define may_rejoin (MUTANT == REJOIN)
#define first_step step
#endif

/* Its membership is over: a service withdrew it, or ended. */
#define cut_off(l) (!up || server != my_server || job != my_job || hot_admitted[w] != hot_epoch[l])

#define both_acked(l, k) ((hot_acked[hot_epoch[l]] >> ((k) - from[l])) & (cold_acked[cold_epoch[l]] >> ((k) - from[l])) & 1)

active [WORKERS] proctype Worker()
{
	byte w = _pid, l, k, my_server, my_job;

	do
	:: complete -> break
	:: lives < LIVES && !complete ->
		/* The server first. A synchronous job ends with a worker that is lost, so
		 * that it takes none a second time: barrier.failure. (Who joins a server that
		 * has lost its job gets no further, and comes again.) */
		if
		:: atomic { up && job == owns && !finished[w] && (!joined[w] || may_rejoin) ->
			l = lives; lives++;
			worker[l] = w; from[l] = first_step; k = first_step;
			joined[w] = true; arrived[w] = false;
			my_server = server; my_job = owns;
			cold_epoch[l] = l + 1; cold_admitted[w] = l + 1; cold_seen[w] = 0
		   }
		:: complete -> goto end
		fi;
		/* Then the switch. */
		if
		:: atomic { job != 0 && (job == my_job || MUTANT == NO_INSTANCE) ->
			my_job = job;
#if MUTANT == SAME_EPOCH
			if
			:: epochs == 0 -> epochs = 1
			:: else
			fi;
#else
			epochs++;
#endif
			hot_epoch[l] = epochs; hot_admitted[w] = epochs;
#if MUTANT != FILTER_KEPT
			hot_seen[w] = 0
#endif
		   }
		:: server != my_server || !up || (job != my_job && MUTANT != NO_INSTANCE) -> goto next
		:: complete -> goto end
		fi;
		/* Train. */
		do
		:: k == STEPS -> break
		:: else ->
			sent[l] = k + 1 - from[l];
			if
			:: both_acked(l, k)			/* Flush */
			:: cut_off(l) -> goto next
			:: worker_crashes > 0 -> worker_crashes--; goto next
			fi;
#ifdef ASYNC
			if
			:: atomic { up && server == my_server && cold_admitted[w] == cold_epoch[l] ->
				k++; reported[w] = k		/* Report */
			   }
			:: atomic { up && server == my_server -> k++ }
			:: cut_off(l) -> goto next
			fi
#else
			if
			:: atomic { up && server == my_server -> arrived[w] = true }
			:: cut_off(l) -> goto next
			:: worker_crashes > 0 -> worker_crashes--; goto next
			fi;
			if
			:: atomic { up && server == my_server && step > k -> k++ }	/* Barrier */
			:: cut_off(l) -> goto next
			:: worker_crashes > 0 -> worker_crashes--; goto next
			fi
#endif
		od;
		if
		:: atomic { up && server == my_server ->
#ifdef ASYNC
			reported[w] = STEPS;
#endif
			finished[w] = true
		   }
		:: cut_off(l)
		fi;
next:		atomic {
			if
			:: up && server == my_server && !finished[w] && !may_rejoin -> lost = true
			:: else
			fi
		}
	od;
end:	skip
}

/* ---- The network, the data plane and the server's endpoint ---- */

#define in_network(k) (k < sent[l])

inline add_hot(k)
{
	assert((bank[current] & bit_of(l, from[l] + k)) == 0);
	bank[current] = bank[current] | bit_of(l, from[l] + k)
}

inline hot_arrives(k)
{
	d_step {
		in_network(k) && job != 0 && hot_epoch[l] != 0 && hot_admitted[worker[l]] == hot_epoch[l] &&
		(!((hot_seen[worker[l]] >> k) & 1) || !((hot_acked[hot_epoch[l]] >> k) & 1)) ->
		if
		:: !((hot_seen[worker[l]] >> k) & 1) ->
			hot_seen[worker[l]] = hot_seen[worker[l]] | (1 << k);
#if MUTANT == ACK_FIRST
			late = late | (1 << k)
#else
			add_hot(k)
#endif
		:: else		/* a repetition */
		fi;
		hot_acked[hot_epoch[l]] = hot_acked[hot_epoch[l]] | (1 << k)
	}
}

inline cold_arrives(k)
{
	d_step {
		in_network(k) && up && cold_admitted[worker[l]] == cold_epoch[l] &&
		(!((cold_seen[worker[l]] >> k) & 1) || !((cold_acked[cold_epoch[l]] >> k) & 1)) ->
		if
		:: !((cold_seen[worker[l]] >> k) & 1) ->
			cold_seen[worker[l]] = cold_seen[worker[l]] | (1 << k);
			assert((open_cold & bit_of(l, from[l] + k)) == 0);
			open_cold = open_cold | bit_of(l, from[l] + k)
		:: else
		fi;
		cold_acked[cold_epoch[l]] = cold_acked[cold_epoch[l]] | (1 << k)
	}
}

active [LIVES] proctype Frames()
{
	byte l = _pid - WORKERS;
#if MUTANT == ACK_FIRST
	byte late;
#endif
end:	do
	:: hot_arrives(0)
	:: cold_arrives(0)
#if STEPS > 1
	:: hot_arrives(1)
	:: cold_arrives(1)
#endif
#if STEPS > 2
	:: hot_arrives(2)
	:: cold_arrives(2)
#endif
#if MUTANT == ACK_FIRST
	:: d_step { late & 1 -> late = late & 254; add_hot(0) }
	:: d_step { late & 2 -> late = late & 253; add_hot(1) }
	:: d_step { late & 4 -> late = late & 251; add_hot(2) }
#endif
	od
}

/* ---- The switch's daemon ---- */

inline clear_bank()
{
	if
	:: frozen -> bank[!current] = 0
	:: else
	fi;
	frozen = false; pending = false
}

inline send(t)
{
	if
	:: frozen -> to_server!stream, number, bank[!current], t
	:: else -> to_server!stream, number, 0, t
	fi;
#if MUTANT == CLEAR_EARLY
	if
	:: frozen -> bank[!current] = 0
	:: else
	fi;
#endif
	skip
}

/* The job ends; its memory is given back. */
inline end_job()
{
	job = 0;
#if MUTANT != BANKS_KEPT
	bank[0] = 0; bank[1] = 0; current = 0;
#endif
	frozen = false; pending = false; number = 0; asked = 0; ticket = 0; stream = 0;
	for (i : 0 .. WORKERS - 1) { hot_admitted[i] = 0; hot_seen[i] = 0 };
	i = 0
}

#if MUTANT == STALE_TICKET
#define RESENT wanted
#else
#define RESENT 0	/* it answers no request of this stream */
#endif

/* Without steps a harvest is also due from time to time. One that would change
 * nothing is left out. */
#ifdef ASYNC
#define due (asked > ticket || bank[current] != 0 || waiting[0] != reported[0] || settled[0] != waiting[0])
#else
#define due (asked > ticket)
#endif

active proctype Switch()
{
	byte s, v;
	mtype what;

end:	do
	:: atomic { to_switch?s, what, v ->
		if
		:: job == 0	/* the stream has ended */
		:: job != 0 && what == BEGIN ->		/* serveHarvest, resume */
			stream = s; asked = 0; ticket = 0;
			assert(v == number || (v + 1 == number && pending));
			if
#if MUTANT == NO_NUMBER
			:: pending -> send(0)
#elif MUTANT == NEW_NUMBER
			:: pending -> number++; send(0)
#else
			:: pending && v == number -> clear_bank()
#if MUTANT == NEVER_AGAIN
			:: pending && v != number -> clear_bank()
#else
			:: pending && v != number -> send(RESENT)
#endif
#endif
			:: else
			fi
		:: job != 0 && what == NOW -> asked = v
		:: job != 0 && what == DONE ->
			assert(pending && v == number);
			clear_bank()
		fi;
		s = 0; v = 0; what = 0
	   }
	:: atomic { job != 0 && stream != 0 && !pending && due && nfull(to_server) ->
		ticket = asked;				/* harvests.harvest, freeze */
		if
		:: bank[current] != 0 -> frozen = true; current = !current
		:: else
		fi;
		pending = true; number++;
		send(ticket)
	   }
	:: atomic { job != 0 && (!up || owns != job) -> end_job() }	/* the lease ends */
	:: atomic { job != 0 && switch_crashes > 0 -> switch_crashes--; end_job() }
	od
}

/* ---- The parameter server ---- */

inline save()
{
#if MUTANT == OPEN_SAVED
	saved_hot = weights_hot | open_hot; saved_cold = weights_cold | open_cold;
#else
	saved_hot = weights_hot; saved_cold = weights_cold;
#endif
	saved_of = harvest_of; saved_harvest = harvest;
	/* NOTHING LOST; if synchronous, NOTHING DOUBLED */
#ifdef ASYNC
	for (i : 0 .. WORKERS - 1) { saved_steps[i] = settled[i] };
	covered(saved_hot, saved_cold)
#else
	saved_step = step;
	exact(saved_hot, saved_cold, 0, saved_step)
#endif
}

/* progress.settleReports. What was acknowledged before a harvest began is in the weights when
 * that is applied. One may be on its way when the report comes, so it takes two. */
inline settle()
{
#ifdef ASYNC
	for (i : 0 .. WORKERS - 1) {
#if MUTANT == SETTLE_ONCE
		settled[i] = reported[i];
#else
		settled[i] = waiting[i];
#endif
		waiting[i] = reported[i]
	};
	i = 0
#endif
}

inline commit()
{
	weights_hot = weights_hot | open_hot; weights_cold = weights_cold | open_cold;
	open_hot = 0; open_cold = 0
}

/* A stream takes the place of one that broke: Harvester.attach. */
inline attach()
{
	newest++;
	to_switch!newest, BEGIN, applied;
	if
	:: wanted > answered -> to_switch!newest, NOW, wanted
	:: else
	fi
}

inline drain()
{
	do
	:: to_switch?_, _, _
	:: empty(to_switch) -> break
	od
}

inline die()
{
	up = false; owns = 0;
	open_hot = 0; open_cold = 0; weights_hot = 0; weights_cold = 0;
	harvest_of = 0; harvest = 0; applied = 0; wanted = 0; answered = 0; asking = false; step = 0; lost = false;
	for (i : 0 .. WORKERS - 1) {
		joined[i] = false; arrived[i] = false; finished[i] = false; cold_admitted[i] = 0; cold_seen[i] = 0
#ifdef ASYNC
		; reported[i] = 0; waiting[i] = 0; settled[i] = 0
#endif
	};
	i = 0;
	do
	:: to_server?_, _, _, _
	:: empty(to_server) -> break
	od;
	drain()
}

#if WORKERS == 1
#define all(what) (what[0])
#else
#define all(what) (what[0] && what[1])
#endif

active proctype Server()
{
	byte s, v, t;
	int sums;

start:	/* open, CreateJob, takeOver */
	atomic { job == 0 ->
		server++; up = true;
		step = saved_step; weights_hot = saved_hot; weights_cold = saved_cold;
		harvest_of = saved_of; harvest = saved_harvest;
#ifdef ASYNC
		for (i : 0 .. WORKERS - 1) {
			reported[i] = saved_steps[i]; waiting[i] = saved_steps[i]; settled[i] = saved_steps[i]
		};
		i = 0;
#endif
		instances++; job = instances; owns = job;
		attach()
	};
	do
	:: atomic { to_server?s, v, sums, t ->		/* Harvester.session */
		if
		:: s == newest ->
			if					/* ps.ApplyHarvest */
			:: MUTANT != NO_NUMBER && v <= harvest && (harvest_of == owns || MUTANT == NUMBER_ONLY)
			:: else ->
				assert((open_hot & sums) == 0 && (weights_hot & sums) == 0);	/* NOTHING DOUBLED */
				open_hot = open_hot | sums; harvest_of = owns; harvest = v
			fi;
			applied = v;
#ifdef ASYNC
			commit(); settle();
#endif
			if
			:: t > answered -> answered = t
			:: else
			fi;
			to_switch!newest, DONE, v
		:: else		/* of a stream that broke */
		fi;
		s = 0; v = 0; t = 0; sums = 0
	   }
#ifdef ASYNC
	:: atomic { all(finished) && !asking -> asking = true; wanted++; to_switch!newest, NOW, wanted }
	:: atomic { asking && answered == wanted ->	/* finish */
		commit();
		for (i : 0 .. WORKERS - 1) { settled[i] = reported[i] };
		save(); complete = true;
		break
	   }
	:: d_step { saved_steps[0] != settled[0] -> save() }
#else
	:: atomic { step < STEPS && all(arrived) && !asking -> asking = true; wanted++; to_switch!newest, NOW, wanted }
	:: d_step { asking && answered == wanted ->	/* commit */
		exact(open_hot, open_cold, step, step + 1);	/* NOTHING LOST, NOTHING DOUBLED */
		commit();
		asking = false; step++;
		for (i : 0 .. WORKERS - 1) { arrived[i] = false };
		i = 0
	   }
	:: d_step { saved_step != step -> save() }
	:: atomic { step == STEPS && all(finished) -> save(); complete = true; break }
#endif
	:: atomic { breaks > 0 -> breaks--;
		if
		:: drain()
		:: skip					/* the switch still reads what was sent before */
		fi;
		attach()
	   }
	:: atomic { job != owns || lost -> save(); die(); goto start }		/* ends with an error */
	:: atomic { server_crashes > 0 -> server_crashes--; die(); goto start }
	od
}

/* When faults end, training ends. */
ltl ends { <> complete }
