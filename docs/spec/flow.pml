/* SPDX-License-Identifier: Apache-2.0 */
/* One flow: a sender's window, the network, a receiver's duplicate filter.
 *
 * Shown: a frame is applied at most once, and an answered one was applied, on a
 * network that loses, repeats and reorders, with numbers that wrap around. The
 * run never ends: the window passes the whole number space again and again.
 *
 * The network is what was ever sent. A frame that is lost arrives never, one that
 * is repeated arrives again, one that is late arrives later; so a channel that
 * forgets nothing, and delivers in any order, has all behaviours of one that does.
 * It forgets a frame only when LIFE further numbers are in use, because numbers
 * that wrap around mean nothing without such a limit.
 *
 * With REFUSE, the receiver may refuse any new frame, for a reason that is gone
 * when the next copy arrives: a sum out of range, no room for a row. Also shown:
 * a frame that its sender takes for refused is never applied, and one that it
 * takes for applied was. The receiver also answers the number before the one that
 * arrives, as a cover does.
 *
 *	sender    retransmit/window.go Add, Ack; transport/worker_receive.go receive
 *	receiver  retransmit/filter.go Fresh, Mark, Refuse; bpf/filter.h; transport/server.go
 */

#ifndef W
#define W 2		/* the window; 512 in the product */
#endif
#ifndef M
#define M 16		/* numbers are taken modulo M; 2^32 */
#endif
#ifndef PLACES
#define PLACES (2 * W)	/* of the filter */
#endif
#ifndef LIFE
#define LIFE (M / 2 + 2 * W)	/* numbers for which a copy may stay in the network */
#endif
#define FIRST 1		/* wire.FirstSeq */

/* The mutants: wrong rules, each of which must be found out. */
#define EQUALITY 1	/* fresh is what differs */
#define RETX_ONLY 2	/* only frames with the RETX flag are looked up */
#define UNMARKED 3	/* PULLs are not entered into the filter */
#define NARROW 4	/* the server takes one number less than a window ahead */
#define COUNTED 5	/* the window bounds how many frames are unanswered, not their span */
#define NO_REPEAT 6	/* the sender repeats nothing */
#define FRESH_AGAIN 7	/* a refusal leaves the number fresh */
#define UNTOLD 8	/* a refused number is entered like an applied one */
#define SHOWN 9		/* covers show refused numbers */
#define NOT_CLEARED 10	/* a frame that is applied leaves its entry's refusal there */
#ifndef MUTANT
#define MUTANT 0
#endif

#define minus(a, b) (((a) + M - (b)) % M)
#define newer(a, b) (minus(a, b) > 0 && minus(a, b) < M / 2)	/* RFC 1982 */

/* The sender. */
byte base = FIRST;	/* oldest number that may be unanswered */
byte next = FIRST;	/* number of the next frame */
bit unanswered[M];
bit pulling;		/* Half a lap of numbers is of one kind, to keep the states few. */

/* The receiver. A real one starts with zeros, too: no number is 0 at first. */
byte seen[PLACES];
#ifdef REFUSE
bit refusal[PLACES];	/* the number was refused */
#endif
#ifdef SERVER
byte last = FIRST - 1;	/* the newest number that it has seen */
#endif

/* The network. */
bit sent[M];		/* the frame may arrive */
bit flagged[M];		/* so may a copy with the RETX flag */
bit pull[M];		/* it is a PULL, which is answered and never applied */
bit answered[M];	/* the answer may arrive */
#ifdef REFUSE
bit denied[M];		/* an ERROR may arrive */
#endif

bit applied[M];		/* of this use of the number: known to the properties only */
#ifdef REFUSE
bit refused[M];		/* of this use: the receiver has refused a copy, */
bit told[M];		/* and the sender knows; likewise */
#endif

#ifdef PROGRESS		/* then the network forgets what it delivers, */
#define ONCE 1
byte losses = 2;	/* and this is how many frames or answers it loses */
#else
#define ONCE 0
#endif

inline forget(n)
{
	sent[n] = 0; flagged[n] = 0; pull[n] = 0; answered[n] = 0; applied[n] = 0;
#ifdef REFUSE
	denied[n] = 0; refused[n] = 0; told[n] = 0
#endif
}

#ifdef REFUSE
#define may_refuse(n) (n % (M / 2) == 3)	/* one in half a lap, to keep the states few */
#define is_refused(n) (seen[(n) % PLACES] == n && refusal[(n) % PLACES])
#define set_refusal(n, bit) refusal[(n) % PLACES] = bit
#if MUTANT == SHOWN
#define is_shown(n) (!newer(n, seen[(n) % PLACES]))
#else
#define is_shown(n) (!newer(n, seen[(n) % PLACES]) && !refusal[(n) % PLACES])
#endif
#define was_refused(n) refused[n]
#else
#define is_refused(n) false
#define set_refusal(n, bit) skip
#define was_refused(n) false
#endif

#if MUTANT == COUNTED
#define count (unanswered[0] + unanswered[1] + unanswered[2] + unanswered[3] + \
	unanswered[4] + unanswered[5] + unanswered[6] + unanswered[7] + \
	unanswered[8] + unanswered[9] + unanswered[10] + unanswered[11] + \
	unanswered[12] + unanswered[13] + unanswered[14] + unanswered[15])
#define full (count >= W || minus(next, base) >= M / 2)
#else
#define full (minus(next, base) >= W)	/* Window.Full */
#endif

active proctype Sender()
{
	do
	:: atomic { !full ->			/* Window.Add */
		/* What has this number now was sent M numbers ago. */
		forget(minus(next, LIFE));
		if
		:: next % (M / 2) == 0 -> pulling = 0
		:: next % (M / 2) == 0 -> pulling = 1
		:: next % (M / 2) != 0
		fi;
		unanswered[next] = 1; sent[next] = 1; pull[next] = pulling;
#ifndef PROGRESS
		flagged[next] = 1;
#endif
		next = (next + 1) % M
	   }
	od
}

/* Whether the receiver takes a frame for new. */
inline judge(n, retx)
{
#if MUTANT == EQUALITY
	fresh = (n != seen[n % PLACES])
#elif MUTANT == RETX_ONLY
	fresh = !retx || newer(n, seen[n % PLACES])
#else
	fresh = newer(n, seen[n % PLACES])
#endif
}

#if MUTANT == NARROW
#define AHEAD (W - 1)
#else
#define AHEAD W
#endif

/* A server does not take every number for the sender's: transport/server.go
 * reaches. An aggregator takes all. */
inline reach(n)
{
	reached = true;
#ifdef SERVER
	if
	:: newer(n, last) && minus(n, last) > AHEAD -> reached = false
	:: newer(n, last) && minus(n, last) <= AHEAD -> last = n
	:: else
	fi
#endif
}

inline arrive(n, retx, refuse)
{
	reach(n);
	if
	:: !reached ->				/* ERROR 14 */
		assert(applied[n] || pull[n] || was_refused(n))	/* It is no frame that is yet to be applied. */
	:: else ->
		judge(n, retx);
		if
		:: fresh && !pull[n] && !refuse ->
			assert(!applied[n]);	/* AT MOST ONCE */
#ifdef REFUSE
			assert(!told[n]);	/* REFUSED FOR GOOD */
#endif
			applied[n] = 1; seen[n % PLACES] = n; answered[n] = 1;
#if MUTANT != NOT_CLEARED
			set_refusal(n, 0)
#endif
#ifdef REFUSE
		:: fresh && !pull[n] && refuse ->	/* ERROR 7, 15, ... */
			refused[n] = 1; denied[n] = 1;
#if MUTANT != FRESH_AGAIN
			seen[n % PLACES] = n; set_refusal(n, MUTANT != UNTOLD)
#endif
		:: !fresh && is_refused(n) && !pull[n] -> denied[n] = 1
#endif
		:: fresh && pull[n] ->
#if MUTANT != UNMARKED
			seen[n % PLACES] = n; set_refusal(n, 0);
#endif
			answered[n] = 1
		:: !fresh && (!is_refused(n) || pull[n]) -> answered[n] = 1
		fi;
#ifdef REFUSE
		if
		:: is_shown(minus(n, 1)) && sent[minus(n, 1)] && !pull[minus(n, 1)] -> answered[minus(n, 1)] = 1
		:: else
		fi
#endif
	fi;
	fresh = false; reached = false
}

/* The sender takes an answer: Window.Ack. */
inline settle(n)
{
	if
	:: newer(next, n) && !newer(base, n) && unanswered[n] ->
		assert(applied[n] || pull[n]);	/* AT LEAST ONCE, when it is acknowledged */
		unanswered[n] = 0;
		do
		:: base != next && !unanswered[base] -> base = (base + 1) % M
		:: else -> break
		od
	:: else		/* answered before */
	fi
}

#ifdef REFUSE
/* The sender takes an ERROR: Window.Refuse. */
inline give_up(n)
{
	if
	:: newer(next, n) && !newer(base, n) && unanswered[n] ->
		assert(!applied[n]);		/* REFUSED FOR GOOD, for what came before */
		told[n] = 1; unanswered[n] = 0;
		do
		:: base != next && !unanswered[base] -> base = (base + 1) % M
		:: else -> break
		od
	:: else		/* answered before */
	fi
}
#endif

/* What becomes of number n in the network. There is one such process a number. */
active [M] proctype Number()
{
	byte n = _pid - 1;	/* the Sender is process 0 */
	bool fresh, reached;

	do
	:: d_step { sent[n] -> sent[n] = !ONCE; arrive(n, 0, 0) }
	:: d_step { flagged[n] -> flagged[n] = !ONCE; arrive(n, 1, 0) }
	:: d_step { answered[n] -> answered[n] = !ONCE; settle(n) }
#ifdef REFUSE
	:: d_step { sent[n] && may_refuse(n) -> sent[n] = !ONCE; arrive(n, 0, 1) }
	:: d_step { flagged[n] && may_refuse(n) -> flagged[n] = !ONCE; arrive(n, 1, 1) }
	:: d_step { denied[n] -> denied[n] = !ONCE; give_up(n) }
#endif
#if MUTANT != NO_REPEAT
	:: unanswered[n] && !flagged[n] && (!ONCE || !sent[n] && !answered[n]) ->
		flagged[n] = 1			/* Window.Resend */
#endif
#ifdef PROGRESS
	:: d_step { losses > 0 && sent[n] -> sent[n] = 0; losses-- }
	:: d_step { losses > 0 && flagged[n] -> flagged[n] = 0; losses-- }
	:: d_step { losses > 0 && answered[n] -> answered[n] = 0; losses-- }
#endif
	od
}

#ifdef PROGRESS
/* When the network has stopped losing, the window moves on for ever. */
ltl moves_on { []<> (base < M / 2) && []<> (base >= M / 2) }
#endif
