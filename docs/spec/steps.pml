/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that several parties take, on several hosts, each through the agent of its host.
 *
 * A party pushes and ends its step by a BARRIER or REDUCE; behind that, another thread of
 * it may push already. When all parties of a host have come, the host meets the others at
 * the server, which commits the step, or drops it. Parties die; agents are stopped, and
 * started again; without steps in common (ASYNC) they are killed as well, which otherwise
 * ends the job.
 *
 * Shown: a step that is not dropped holds the pushes that its parties made in it, and no
 * others; it is dropped only if it holds one of a party that has ended before its end;
 * and all parties come to the end of the last step.
 *
 *	Party	a client of docs/agent.md
 *	Agent	agent/barrier.go addParty, partyArrived, meetHosts, answerParties, removeParty;
 *		agent/entries.go isBlocked; cluster/node/agent_linux.go endPart
 *	Server	control/barrier.go arrive, meet, run, next, depart, tear
 *
 * A push is a bit: whether a party has one in a step.
 */

#ifndef HOSTS
#define HOSTS 2
#endif
#ifndef PARTIES
#define PARTIES 2	/* on each host */
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef DEATHS
#define DEATHS 1	/* of parties */
#endif
#ifndef STOPS
#define STOPS 1		/* of agents */
#endif
#define N (HOSTS * PARTIES)
#define HOST(i) ((i) / PARTIES)

/* The mutants. */
#define OVERTAKE 1	/* a push behind the end of a step is sent before that is answered */
#define FORGET 2	/* a step that a host ends by BARRIERs alone is committed although it is torn */
#define FINISHED 3	/* an agent that is stopped counts as one that has finished */
#define FIRST_STEP 4	/* a host that comes back begins with the first step */
#define NO_TEAR 5	/* an agent that is stopped does not report a torn step */
#define ARRIVAL_KEPT 6	/* the arrival of a host that has left counts for the one that comes back */
#define TORN_TWICE 7	/* a torn step makes the host drop the next one, too */
#define TEAR_NEXT 8	/* a party that leaves while its host meets the others tears the step after */
#define EARLY 9		/* a host that comes back does not wait for the commit of a step in which it has arrived */
#ifndef MUTANT
#define MUTANT 0
#endif

/* Answers. */
#define NONE 0
#define OK 1
#define DROPPED 2
#define GONE 3		/* PARTY_GONE */

/* The server. */
byte due;		/* the step of the next barrier */
bool arrived[HOSTS];
bool finished[HOSTS];	/* only in a mutant: the model's parties stay until all have finished */
byte came;		/* how many have arrived or finished */
bool commits;		/* all have */
bool torn;		/* the open step is to be dropped */

/* The open step. */
bool holds[N];		/* a push of a party in it */
bool ahead[N];		/* a push of a party in the next step */
bool orphan;		/* a push of a party that has ended before the end of the step */

/* The agents. */
bool up[HOSTS];
byte at[HOSTS];		/* the due step */
bool meets[HOSTS];	/* it meets the others */
byte told[HOSTS];	/* by the server */
bool gone[HOSTS];	/* a party has left, others are there */
bool drop[HOSTS];	/* the due step is torn */
byte members[HOSTS];
byte waiting[HOSTS];	/* parties at the end of the due step, until the host meets the others */

/* The parties. */
bool member[N];
bool waits[N];		/* it is at the end of the step */
bool counted[N];	/* its host meets the others with it */
bool behind[N];		/* a push waits in the ring behind the end of the step */
byte answer[N];

byte deaths = DEATHS, stops = STOPS;

/* The server begins the commit when all have arrived. */
inline arrive(h)
{
	if
	:: !arrived[h] && !finished[h] -> came++
	:: else
	fi;
	arrived[h] = true;
	commits = (came == HOSTS)
}

/* A host's earlier arrival no longer counts, unless it is too late. */
inline depart(h)
{
	if
	:: arrived[h] && !commits -> arrived[h] = false; came--
	:: else
	fi
}

/* The pushes of a party that ends without the end of its step. */
inline abandon(i)
{
	if
	:: holds[i] -> holds[i] = false; orphan = true; drop[HOST(i)] = true
	:: else
	fi
}

/* A party's session ends. Those of its host that wait fail. */
inline leave(i)
{
	member[i] = false; members[HOST(i)]--;
	gone[HOST(i)] = members[HOST(i)] > 0;
	behind[i] = false; answer[i] = NONE;
	if
	:: !counted[i] -> abandon(i)
	:: else ->
#if MUTANT == TEAR_NEXT
		drop[HOST(i)] = true
#else
		skip
#endif
	fi;
	if
	:: waiting[HOST(i)] > 0 ->
		for (k : HOST(i) * PARTIES .. (HOST(i) + 1) * PARTIES - 1) {
			if
			:: waits[k] && !counted[k] ->
				waits[k] = false;
				if
				:: member[k] -> answer[k] = GONE
				:: else
				fi
			:: else
			fi
		}
		waiting[HOST(i)] = 0
	:: else
	fi;
	k = 0
}

proctype Party(byte i)
{
	byte step, k;

come:	atomic {
		up[HOST(i)] && members[HOST(i)] < PARTIES && !(meets[HOST(i)] && members[HOST(i)] == 0) &&
			!gone[HOST(i)] ->
		member[i] = true; members[HOST(i)]++;
		step = at[HOST(i)]
	}
	do
	:: atomic { !member[i] -> step = 0; goto come }	/* Its agent was stopped. */
	:: atomic { member[i] && deaths > 0 -> deaths--; leave(i); step = 0; goto come }
	:: atomic { member[i] && answer[i] == GONE -> leave(i); step = 0; goto come }
	:: atomic { member[i] && (answer[i] == OK || answer[i] == DROPPED) ->
		answer[i] = NONE; step++;
		if
		:: behind[i] -> behind[i] = false; holds[i] = true	/* Now the agent takes it. */
		:: else
		fi }
	:: atomic { member[i] && !waits[i] && !answer[i] && step < STEPS && !holds[i] -> holds[i] = true }
	:: atomic { member[i] && !waits[i] && !answer[i] && step < STEPS ->
		if
		:: gone[HOST(i)] -> answer[i] = GONE
		:: else -> waits[i] = true; waiting[HOST(i)]++
		fi }
	:: atomic { member[i] && waits[i] && step + 1 < STEPS && !behind[i] && !ahead[i] ->
#if MUTANT == OVERTAKE
		ahead[i] = true
#else
		behind[i] = true
#endif
		}
	:: step >= STEPS ->
		/* Whoever has started it ends it when another one of the host has ended. */
end_last:	atomic { (!member[i] || gone[HOST(i)]) ->
			if
			:: member[i] -> leave(i)
			:: else
			fi;
			step = 0; goto come }
	od
}

proctype Agent(byte h)
{
	byte k;

end:	do
	:: atomic { up[h] && !meets[h] && waiting[h] == PARTIES && !commits && at[h] == due ->
		meets[h] = true; waiting[h] = 0;
		for (k : h * PARTIES .. (h + 1) * PARTIES - 1) {
			counted[k] = true
		}
		k = 0;
#if MUTANT == FORGET
		if
		:: torn = torn || drop[h]
		:: skip			/* Nobody reduces. */
		fi;
#else
		torn = torn || drop[h];
#endif
#if MUTANT != TORN_TWICE
		drop[h] = false;
#endif
		arrive(h) }
	:: atomic { up[h] && told[h] ->
		meets[h] = false; at[h]++;
		for (k : h * PARTIES .. (h + 1) * PARTIES - 1) {
			if
			:: counted[k] && member[k] -> answer[k] = told[h]
			:: else
			fi;
			waits[k] = false; counted[k] = false
		}
		k = 0; told[h] = NONE }
	:: atomic { up[h] && stops > 0 ->
		stops--; up[h] = false;
		for (k : h * PARTIES .. (h + 1) * PARTIES - 1) {
			if
			:: !counted[k] || !commits -> abandon(k); counted[k] = false
			:: else		/* They end the step, although nobody is told. */
			fi;
			member[k] = false; waits[k] = false; behind[k] = false; answer[k] = NONE
		}
		k = 0;
#ifndef ASYNC
#if MUTANT != NO_TEAR && MUTANT != FINISHED
		torn = torn || drop[h] && at[h] == due && !commits;
#endif
#endif
		meets[h] = false; told[h] = NONE; gone[h] = false; drop[h] = false; members[h] = 0; waiting[h] = 0;
#if MUTANT != ARRIVAL_KEPT
		depart(h);
#endif
#if MUTANT == FINISHED
		if
		:: !arrived[h] && !finished[h] -> came++
		:: else
		fi;
		finished[h] = true;
		commits = commits || came == HOSTS && came > 0 && (arrived[0] || arrived[1])
#endif
		}
	:: atomic { !up[h] && (!commits || MUTANT == EARLY) -> up[h] = true;
#if MUTANT == FIRST_STEP
		at[h] = 0
#else
		at[h] = due
#endif
		}
	od
}

active proctype Server()
{
	byte k, outcome;

end:	do
	:: atomic { commits ->
		if
		:: torn -> outcome = DROPPED;
#ifndef ASYNC
			assert(orphan);			/* CAUSED */
#endif
		:: else -> outcome = OK;
#ifndef ASYNC
			assert(!orphan)			/* WHOLE */
#endif
		fi;
		for (k : 0 .. N - 1) {
#ifndef ASYNC
			assert(outcome == DROPPED || !holds[k] || counted[k]);
			assert(outcome == DROPPED || !ahead[k]);
#endif
			holds[k] = ahead[k];
			ahead[k] = false;
			if
			:: !up[HOST(k)] -> counted[k] = false
			:: else
			fi
		}
		for (k : 0 .. HOSTS - 1) {
			if
			:: arrived[k] && meets[k] -> told[k] = outcome
			:: else
			fi;
			if
			:: !finished[k] && arrived[k] -> came--
			:: else
			fi;
			arrived[k] = false
		}
		k = 0; outcome = NONE; orphan = false; torn = false; commits = false; due++ }
	od
}

init
{
	atomic {
		byte n;
		for (n : 0 .. HOSTS - 1) {
			up[n] = true; run Agent(n)
		}
		for (n : 0 .. N - 1) {
			run Party(n)
		}
	}
}
