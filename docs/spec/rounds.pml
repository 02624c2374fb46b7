/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds: the operations of small all-reduces, in the modes sync and acked, and Algorithms 2 and 3 of
 * the P4SGD paper (MODE=PAPER).
 *
 * Shown: every worker gets the sums of all workers' contributions to each operation, once, and no frame
 * is refused for its round, on a network that loses, repeats and reorders. Operation k is round k / N of
 * group k % N; its frame has number k + 1.
 *
 * The network is what was ever sent, as in flow.pml. With LOSSY it forgets what it delivers, and loses
 * LOSSES frames or answers; whoever waits sends again when nothing is left in it. Shown then: all
 * operations end.
 *
 *	worker		transport/reducer/frames.go, taken.go
 *	aggregator	aggregator/round.go; bpf/sync.h, acked.h
 */

#define SYNC 1
#define ACKED 2
#define PAPER 3
#ifndef MODE
#define MODE ACKED
#endif
#ifndef W
#define W 2		/* workers */
#endif
#ifndef N
#define N 2		/* operations in flight; up to 256 in the product */
#endif
#ifndef OPS
#define OPS 4		/* operations of a run */
#endif
#ifndef LOSSES
#define LOSSES 2
#endif
#ifndef REPEATS
#define REPEATS 8	/* as many as the losses of a run need, and more */
#endif

/* The mutants: wrong rules, each of which must be found out. */
#define NO_FILTER 1	/* what the group does not hold is taken for fresh */
#define SHORT_FILTER 2	/* the filter has one entry */
#define NOT_ZEROED 3	/* the next round adds to the sums of an earlier one */
#define TAKERS_KEPT 4	/* who has taken a result has taken the next one */
#define ANY_TAKEN 5	/* TAKEN counts for any round */
#define ANY_SUM 6	/* a worker takes the sums of any round */
#define ANY_CONFIRMATION 7	/* a worker takes the confirmation of any round */
#define TWICE 8		/* a worker takes a result twice */
#define EARLY 9		/* a worker contributes before all have the result */
#define UNANSWERED 10	/* contributions that are repeated get no result */
#define UNCONFIRMED 11	/* TAKEN that is repeated gets no confirmation */
#define ONE_BANK 12	/* of sync */
#define ONCE 13		/* of PAPER: a worker takes a result only while it waits: one fault less */
#ifndef MUTANT
#define MUTANT 0
#endif

#if MUTANT == SHORT_FILTER
#define F 1
#else
#define F OPS
#endif
#define ALL ((1 << W) - 1)
#define MIXED 255	/* of more than one operation, or twice of one */

/* The workers: by worker and group. */
byte op[W * N];		/* the newest operation */
byte st[W * N];		/* 0: none, 1: waits for its result, 2: has it, and waits for the confirmation */
byte next[W];		/* the operation to be started */
bit given[W * OPS];	/* the result was handed over */

/* The aggregator: by group. */
byte v[N];		/* the round */
byte C[N];		/* who has contributed */
byte A[N];		/* who has the result */
byte sum[2 * N * W];	/* by bank, too: the operation of each worker's value, plus 1 */
byte seen[W * F];

/* The network. Of results, a bit for each content: bit k + 1 is that of operation k, bit 0 a wrong one. */
bit hot[W * OPS];
bit taken[W * OPS];
byte sums[W * OPS];
bit confirmed[W * OPS];
byte losses = LOSSES;
byte repeats;

#define at(i, g) ((i) * N + (g))
#define msg(i, k) ((i) * OPS + (k))
#define value(b, g, i) sum[((b) * N + (g)) * W + (i)]

#ifdef LOSSY
#define forget(m) m = 0
#else
#define forget(m) skip
#endif

/* content is the bit of what a bank holds of a group. */
inline content(which, grp, bits) {
	bits = value(which, grp, 0);
	j = 1;
	do
	:: j < W -> if :: value(which, grp, j) != bits -> bits = 0 :: else fi; j++
	:: else -> break
	od;
	bits = (bits == 0 || bits == MIXED -> 1 : 1 << bits)
}

inline zero(which, grp) {
#if MUTANT != NOT_ZEROED
	j = 0;
	do
	:: j < W -> value(which, grp, j) = 0; j++
	:: else -> break
	od
#else
	skip
#endif
}

inline add(which, grp, who, what) {
	value(which, grp, who) = (value(which, grp, who) == 0 -> what + 1 : MIXED)
}

/* to_all sends a result, or a confirmation, to all workers. */
inline to_all(label, bits) {
	j = 0;
	do
	:: j < W -> sums[msg(j, label)] = sums[msg(j, label)] | bits; j++
	:: else -> break
	od
}

inline confirm_all(label) {
	j = 0;
	do
	:: j < W -> confirmed[msg(j, label)] = 1; j++
	:: else -> break
	od
}

#define bit_of(i) (1 << (i))
#define bank (MODE == SYNC && MUTANT != ONE_BANK -> v[g] & 1 : 0)
#define seq ((k) + 1)

/* contribute is what the aggregator does with contribution k of worker i. */
inline contribute() {
	b = bank;
	other = 1 - b;
	fresh = seq > seen[i * F + (k) % F];
#if MUTANT == NO_FILTER
	fresh = !(C[g] & bit_of(i));
#endif
	if
	:: fresh ->
		assert(!(C[g] & bit_of(i)));	/* refused: ERROR 13 */
		seen[i * F + (k) % F] = seq;
		add(b, g, i, k);
		C[g] = C[g] | bit_of(i);
		if
		:: C[g] == ALL ->
			content(b, g, c);
			to_all(v[g] * N + g, c);
#if MODE == SYNC
#if MUTANT == ONE_BANK
			zero(0, g);
#else
			zero(other, g);
#endif
			C[g] = 0;
			v[g]++
#endif
		:: else
		fi
	:: else ->
#if MUTANT != UNANSWERED
#if MODE == SYNC
		if
		:: !(C[g] & bit_of(i)) && v[g] > 0 -> content(other, g, c); sums[msg(i, k)] = sums[msg(i, k)] | c
		:: else
		fi
#else
		if
		:: C[g] == ALL -> content(0, g, c); sums[msg(i, k)] = sums[msg(i, k)] | c
		:: else
		fi
#endif
#else
		skip
#endif
	fi
}

/* take is what the aggregator does with TAKEN of operation k of worker i. */
inline take() {
	if
#if MUTANT == ANY_TAKEN
	:: C[g] == ALL ->
#else
	:: C[g] == ALL && (k) / N == v[g] ->
#endif
		A[g] = A[g] | bit_of(i);
		if
		:: A[g] == ALL ->
			zero(0, g);
			C[g] = 0;
#if MUTANT != TAKERS_KEPT
			A[g] = 0;
#endif
			v[g]++;
			confirm_all(k)
		:: else
		fi
	:: else ->
#if MUTANT != ANY_TAKEN
		assert((k) / N < v[g]);	/* otherwise refused: ERROR 13 */
#endif
#if MUTANT != UNCONFIRMED
		if
		:: (k) / N < v[g] -> confirmed[msg(i, k)] = 1
		:: else
		fi
#else
		skip
#endif
	fi
}

/* give hands result c over to worker i, for the operation of group g that it waits for. */
inline give() {
	assert(c == 1 << (op[at(i, g)] + 1));	/* the sums of that operation, and no others */
	assert(!given[msg(i, op[at(i, g)])]);
	given[msg(i, op[at(i, g)])] = 1;
#if MODE == SYNC
	st[at(i, g)] = 0
#else
	st[at(i, g)] = 2;
	taken[msg(i, op[at(i, g)])] = 1
#endif
}

/* worker starts operations, in order. */
proctype worker(byte i) {
	byte g;
end:
	do
	:: atomic { next[i] < OPS && (st[at(i, next[i] % N)] == 0 || (MUTANT == EARLY && st[at(i, next[i] % N)] == 2)) ->
		g = next[i] % N;
		op[at(i, g)] = next[i];
		st[at(i, g)] = 1;
		hot[msg(i, next[i])] = 1;
		next[i]++;
		g = 0
	   }
	od
}

#define newest (op[at(i, g)] == k)
#define wants_sums (st[at(i, g)] == 1 && (newest || MUTANT == ANY_SUM) || \
	MUTANT == TWICE && st[at(i, g)] == 2 && newest)

/* frames delivers, or loses, what is under way of one worker's operation. */
proctype frames(byte i; byte k) {
	byte g, b, other, c, j;
	bit fresh;
	g = k % N;
end:
	do
	:: atomic { hot[msg(i, k)] -> forget(hot[msg(i, k)]); contribute(); b = 0; other = 0; c = 0; j = 0; fresh = 0 }
	:: atomic { taken[msg(i, k)] -> forget(taken[msg(i, k)]); take(); b = 0; c = 0; j = 0 }
	:: atomic { sums[msg(i, k)] && wants_sums -> c = sums[msg(i, k)]; forget(sums[msg(i, k)]); give(); c = 0 }
	:: atomic { confirmed[msg(i, k)] && st[at(i, g)] == 2 && (newest || MUTANT == ANY_CONFIRMATION) ->
		forget(confirmed[msg(i, k)]);
		st[at(i, g)] = 0
	   }
#ifdef LOSSY
	:: atomic { sums[msg(i, k)] && !wants_sums -> sums[msg(i, k)] = 0 }
	:: atomic { confirmed[msg(i, k)] && !(st[at(i, g)] == 2 && newest) -> confirmed[msg(i, k)] = 0 }
	:: atomic { losses > 0 && hot[msg(i, k)] -> losses--; hot[msg(i, k)] = 0 }
	:: atomic { losses > 0 && taken[msg(i, k)] -> losses--; taken[msg(i, k)] = 0 }
	:: atomic { losses > 0 && sums[msg(i, k)] -> losses--; sums[msg(i, k)] = 0 }
	:: atomic { losses > 0 && confirmed[msg(i, k)] -> losses--; confirmed[msg(i, k)] = 0 }
#endif
	od
}

/* timer lets all that wait send again when nothing is under way. */
proctype timer() {
	byte i, g;
end:
	do
	:: atomic { timeout && repeats < REPEATS ->
		repeats++;
		i = 0;
		do
		:: i < W ->
			g = 0;
			do
			:: g < N ->
				if
				:: st[at(i, g)] == 1 -> hot[msg(i, op[at(i, g)])] = 1
				:: st[at(i, g)] == 2 -> taken[msg(i, op[at(i, g)])] = 1
				:: else
				fi;
				g++
			:: else -> break
			od;
			i++
		:: else -> break
		od;
		i = 0;
		g = 0
	   }
	od
}

/* all_end is where all operations have ended; without, a run that ends is stuck. */
proctype all_end() {
	byte j;
	do
	:: j < W * OPS -> given[j] && (MODE == SYNC || st[at(j / OPS, (j % OPS) % N)] == 0); j++
	:: else -> break
	od
}

/* Algorithms 2 and 3 as printed. A packet names its slot, and neither round nor number. */
bit pa[W * OPS];	/* partial activations */
byte fa[N];		/* full activations that were sent, as sums above */
bit ack[W * N];
bit acked[N];

proctype printed_worker(byte i) {
	byte g;
	do
	:: atomic { next[i] < OPS && st[at(i, next[i] % N)] == 0 ->	/* Algorithm 3, line 2 */
		g = next[i] % N;
		op[at(i, g)] = next[i];
		st[at(i, g)] = 1;
		pa[msg(i, next[i])] = 1;
		next[i]++;
		g = 0
	   }
	od
}

proctype printed_slot(byte i; byte g) {
	byte c, j, k;
	k = g;
	do
	:: atomic { fa[g] && (MUTANT != ONCE || st[at(i, g)] == 1) && next[i] > g ->	/* Algorithm 3, lines 19 to 24 */
		assert(fa[g] == 1 << (op[at(i, g)] + 1) || given[msg(i, op[at(i, g)])]);
		assert(!given[msg(i, op[at(i, g)])]);
		given[msg(i, op[at(i, g)])] = 1;
		st[at(i, g)] = 2;
		ack[at(i, g)] = 1
	   }
	:: atomic { acked[g] && st[at(i, g)] != 0 -> st[at(i, g)] = 0 }	/* line 27 */
	:: atomic { ack[at(i, g)] ->	/* Algorithm 2, lines 18 to 29 */
		if
		:: !(A[g] & bit_of(i)) ->
			A[g] = A[g] | bit_of(i);
			if
			:: A[g] == ALL -> C[g] = 0; zero(0, g); j = 0
			:: else
			fi
		:: else
		fi;
		if
		:: A[g] == ALL -> acked[g] = 1
		:: else
		fi
	   }
	od
}

proctype printed_pa(byte i; byte k) {
	byte g, c, j;
	g = k % N;
	do
	:: atomic { pa[msg(i, k)] ->	/* Algorithm 2, lines 2 to 16 */
		if
		:: !(C[g] & bit_of(i)) ->
			C[g] = C[g] | bit_of(i);
			add(0, g, i, k);
			if
			:: C[g] == ALL -> A[g] = 0
			:: else
			fi
		:: else
		fi;
		if
		:: C[g] == ALL -> content(0, g, c); fa[g] = fa[g] | c; c = 0; j = 0
		:: else
		fi
	   }
	od
}

init {
	byte i, k;
	atomic {
		do
		:: i < W ->
#if MODE == PAPER
			run printed_worker(i);
			k = 0;
			do
			:: k < N -> run printed_slot(i, k); k++
			:: else -> break
			od;
#else
			run worker(i);
#endif
			k = 0;
			do
			:: k < OPS ->
#if MODE == PAPER
				run printed_pa(i, k);
#else
				run frames(i, k);
#endif
				k++
			:: else -> break
			od;
			i++
		:: else -> break
		od;
		i = 0;
		k = 0;
#ifdef LOSSY
		run timer();
		run all_end()
#endif
	}
}
