/* SPDX-License-Identifier: Apache-2.0 */
/* A hot set that is divided into shares: jobs of their own, at one switch or at
 * several, whose harvests the server takes in turn.
 *
 * Shown, whatever streams break when: a gradient is added to the weights at most
 * once. A step of a synchronous job has the gradients of all shares, each once; the
 * weights of an asynchronous one (-DASYNC) have all steps that count as settled, in
 * all shares. Training ends.
 *
 * That a flow applies a frame once is flow.pml's part, that a bank is frozen whole
 * is swap.pml's; crashes, which end such a job, and checkpoints are cluster.pml's.
 *
 *	Worker	train/train.go, transport/worker_send.go
 *	Switch	control/harvest_bank.go, control/harvest_stream.go
 *	Server	cluster/node/shares.go, cluster/node/timed_steps.go, cluster/node/fence.go,
 *		cluster/node/progress.go, control/harvester.go, ps/harvest.go
 *
 * One worker has a hot frame for each share in each step. A gradient is a bit: that
 * of step k.
 *
 * With -DCHANGE the plan changes at any moment: each step has one gradient, which goes
 * to share 0 before the change, and to share 1 after it. Share 0 is closed when the
 * worker has adopted the plan: cluster/node/change_plan.go, control/follow_plan.go.
 */

#define SHARES 2
#ifndef STEPS
#define STEPS 2
#endif
#ifndef BREAKS
#define BREAKS 1	/* of harvest streams, all together */
#endif
#ifndef ROUNDS
#define ROUNDS 1	/* that the server's clock begins, at most */
#endif

/* The mutants. */
#define ONE_NUMBER 1	/* the store has one newest number for the harvests of all shares */
#define CLOSE_EARLY 2	/* a share is closed before the worker has adopted the plan */
#define COMMIT_WITHOUT 3	/* a step ends when the first share has answered */
#define REPORTS_LATE 4	/* it settles what is reported when the shares have answered */
#define ASK_ONCE 5	/* a share that has not answered is not asked again */
#ifndef MUTANT
#define MUTANT 0
#endif

byte sent;			/* steps whose frames are in the network */
byte acked[SHARES];		/* steps whose frame is acknowledged, a bit each */
byte reported;			/* steps that the worker has had acknowledged */
bool arrived;			/* at the end of the step */
byte moved;			/* steps that go to share 1, with CHANGE: a bit each */
bool moves, adopted;

/* The switches. */
byte bank[4];			/* two of each share */
bit current[SHARES];
bool frozen[SHARES], pending[SHARES];
byte number[SHARES], asked[SHARES], ticket[SHARES], stream[SHARES];

/* The server. */
byte open[SHARES], weights[SHARES];
byte step, settled;
byte last_number, last[SHARES];	/* the newest harvests applied */
byte applied[SHARES];		/* Harvester.last */
byte wanted[SHARES], answered[SHARES], newest[SHARES];
bool asking;
byte breaks = BREAKS, rounds = ROUNDS;
bool complete;
bool told, closed;		/* the plan that the worker is to adopt; share 0 */

mtype = { BEGIN, NOW, DONE };
chan to_switch0 = [4] of { byte, mtype, byte };
chan to_switch1 = [4] of { byte, mtype, byte };
chan to_server = [4] of { byte, byte, byte, byte, byte };	/* share, stream, number, sums, ticket */

/* ---- The worker, and the data planes ---- */

active proctype Worker()
{
	byte k;

	do
	:: k == STEPS -> break
	:: else ->
#ifdef CHANGE
		atomic {	/* the table is exchanged between two pushes, at once or later */
			if
			:: told -> moves = true
			:: true
			fi;
			moved = moved | (moves << k);
			sent = k + 1
		};
		if
		:: ((acked[0] | acked[1]) >> k) & 1
		:: closed && !moves -> break	/* no such job: this one ends, by name */
		fi;
		atomic {	/* everything that went to share 0 is acknowledged */
			if
			:: moves -> adopted = true
			:: else
			fi
		};
#else
		sent = k + 1;
		(acked[0] >> k) & (acked[1] >> k) & 1;		/* Flush */
#endif
#ifdef ASYNC
		k++; reported = k
#else
		arrived = true;
		atomic { step > k -> k++ }
#endif
	od;
#ifdef CHANGE
	adopted = true	/* it waits for no answer */
#endif
}

#ifdef CHANGE
#define goes_to(s, k) (((moved >> k) & 1) == s && !(s == 0 && closed))
#else
#define goes_to(s, k) true
#endif
#define may_arrive(s, k) (k < sent && !((acked[s] >> k) & 1) && goes_to(s, k))

inline arrives(s, k)
{
	d_step { may_arrive(s, k) ->
		bank[2 * s + current[s]] = bank[2 * s + current[s]] | (1 << k);
		acked[s] = acked[s] | (1 << k)
	}
}

active proctype Frames()
{
end:	do
	:: arrives(0, 0)
	:: arrives(1, 0)
#if STEPS > 1
	:: arrives(0, 1)
	:: arrives(1, 1)
#endif
#if STEPS > 2
	:: arrives(0, 2)
	:: arrives(1, 2)
#endif
	od
}

/* ---- The daemons, as in cluster.pml ---- */

inline clear_bank()
{
	if
	:: frozen[s] -> bank[2 * s + 1 - current[s]] = 0
	:: else
	fi;
	frozen[s] = false; pending[s] = false
}

inline send(t)
{
	if
	:: frozen[s] -> to_server!s, stream[s], number[s], bank[2 * s + 1 - current[s]], t
	:: else -> to_server!s, stream[s], number[s], 0, t
	fi
}

proctype Switch(byte s; chan from)
{
	byte by, v;
	mtype what;

end:	do
	:: atomic { from?by, what, v ->
		if
		:: what == BEGIN ->
			stream[s] = by; asked[s] = 0; ticket[s] = 0;
			assert(v == number[s] || (v + 1 == number[s] && pending[s]));
			if
			:: pending[s] && v == number[s] -> clear_bank()
			:: pending[s] && v != number[s] -> send(0)	/* it answers no request of this stream */
			:: else
			fi
		:: what == NOW -> asked[s] = v
		:: what == DONE && by == stream[s] -> assert(pending[s] && v == number[s]); clear_bank()
		:: what == DONE && by != stream[s]
		fi;
		by = 0; v = 0; what = 0
	   }
	:: atomic { stream[s] != 0 && !pending[s] && asked[s] > ticket[s] && len(to_server) < 3 ->
		ticket[s] = asked[s];
		if
		:: bank[2 * s + current[s]] != 0 -> frozen[s] = true; current[s] = 1 - current[s]
		:: else
		fi;
		pending[s] = true; number[s]++;
		send(ticket[s])
	   }
	od
}

/* ---- The server ---- */

inline tell(s, what, v)
{
	if
	:: s == 0 -> to_switch0!newest[0], what, v
	:: else -> to_switch1!newest[1], what, v
	fi
}

inline attach(s)
{
	if
	:: s == 0 && closed
	:: else -> begin(s)
	fi
}

inline begin(s)
{
	newest[s]++;
	tell(s, BEGIN, applied[s]);
	if
	:: wanted[s] > answered[s] -> tell(s, NOW, wanted[s])
	:: else
	fi
}

inline ask(s)
{
	if
	:: MUTANT == ASK_ONCE && wanted[s] > answered[s]
	:: s == 0 && closed	/* Harvester.Finish */
	:: else -> wanted[s]++; tell(s, NOW, wanted[s])
	fi
}

inline commit()
{
	weights[0] = weights[0] | open[0]; weights[1] = weights[1] | open[1];
	open[0] = 0; open[1] = 0
}

#if MUTANT == COMMIT_WITHOUT
#define have_answered(r0, r1) (answered[0] >= r0)
#else
#define have_answered(r0, r1) (answered[0] >= r0 && answered[1] >= r1)
#endif

/* Has the store had the harvest? ps.ApplyHarvest */
#if MUTANT == ONE_NUMBER
#define is_known(s, v) (v <= last_number)
#else
#define is_known(s, v) (v <= last[s])
#endif

active proctype Server()
{
	byte s, by, v, sums, t;

	atomic {
		attach(0); attach(1);
		run Switch(0, to_switch0); run Switch(1, to_switch1);
#ifdef ASYNC
		run Reports();
		run Clock()
#endif
#ifdef CHANGE
		run Change()
#endif
	};
end:	do
	:: atomic { to_server?s, by, v, sums, t ->
		if
		:: by == newest[s] ->
			if
			:: is_known(s, v)
			:: else ->
				assert((open[s] & sums) == 0 && (weights[s] & sums) == 0);	/* NOTHING DOUBLED */
				open[s] = open[s] | sums;
				last[s] = v; last_number = v
			fi;
			applied[s] = v;
			if
			:: t > answered[s] -> answered[s] = t
			:: else
			fi;
			tell(s, DONE, v)
		:: else		/* of a stream that broke */
		fi;
		s = 0; by = 0; v = 0; sums = 0; t = 0
	   }
	:: atomic { breaks > 0 && !complete -> breaks--;
		if
		:: true -> attach(0)
		:: true -> attach(1)
		fi
	   }
#ifndef ASYNC
	:: atomic { arrived && !asking -> asking = true; ask(0); ask(1) }
	:: d_step { asking && have_answered(wanted[0], wanted[1]) ->
		/* NOTHING LOST */
#ifdef CHANGE
		open[0] = open[0] | open[1]; open[1] = 0;
		assert(open[0] == (1 << step));
#else
		assert(open[0] == (1 << step));
		assert(open[1] == (1 << step));
#endif
		commit();
		asking = false; arrived = false; step++;
		complete = (step == STEPS)
	   }
#endif
	od
}

#ifdef CHANGE
/* changePlan: share 1 is open, and the plan is told. Closed, a share has no bank any more, and has answered all. */
proctype Change()
{
	byte r0;

	told = true;
#if MUTANT != CLOSE_EARLY
	adopted;
#endif
	atomic { wanted[0]++; tell(0, NOW, wanted[0]); r0 = wanted[0] };
	answered[0] >= r0;
	d_step { closed = true; bank[0] = 0; bank[1] = 0; answered[0] = 254; r0 = 0 }
}
#endif

#ifdef ASYNC
/* A step that has everything that was acknowledged before the reports were taken: endTimedStep. */
inline end_step(reports)
{
	commit();
#if MUTANT == REPORTS_LATE
	reports = reported;
#endif
	if
	:: reports > settled -> settled = reports
	:: else
	fi;
	/* NOTHING LOST */
	assert((weights[0] & ((1 << settled) - 1)) == (1 << settled) - 1);
	assert((weights[1] & ((1 << settled) - 1)) == (1 << settled) - 1);
	reports = 0
}

/* The harvests of workers' reports. */
proctype Reports()
{
	byte reports, r0, r1;

	do
	:: settled == STEPS -> complete = true; break
	:: atomic { reported > settled -> reports = reported };
		atomic { ask(0); r0 = wanted[0] };
		atomic { ask(1); r1 = wanted[1] };
		d_step { have_answered(r0, r1) -> end_step(reports); r0 = 0; r1 = 0 }
	od
}

/* Those of job.harvest: harvestByTime. */
proctype Clock()
{
	byte reports, r0, r1;

end:	do
	:: atomic { rounds > 0 && !complete -> rounds--; reports = reported };
		atomic { ask(0); r0 = wanted[0] };
		atomic { ask(1); r1 = wanted[1] };
		do
		:: d_step { have_answered(r0, r1) -> end_step(reports); r0 = 0; r1 = 0 }; break
		:: d_step { (open[0] | open[1]) != 0 -> commit() }	/* another period has passed */
		od
	od
}
#endif

/* Training ends. */
ltl ends { <> complete }
