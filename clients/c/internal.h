/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the library's files share.
 *
 * handshake.c opens a session, session.c closes it, requests.c has one function per request, wait.c
 * waits for them, ring.c submits and completes them, buffers.c divides the buffer area, base.c has
 * the time and the check for forks, codec.c codes gradients without a session, error.c keeps the
 * texts. Each file calls only files that this list names after it.
 */
#ifndef LIBRA_INTERNAL_H
#define LIBRA_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "libra.h"
#include "protocol.h"

/* A part of the buffer area. */
struct extent {
	uint64_t offset, bytes;
};

/* buffers.c: the used and free parts of an area, without its contents. */
struct buffers {
	uint64_t bytes;
	struct extent *free; /* by offset, no two of them adjacent */
	size_t frees, free_room;
	struct extent *lent; /* by libra_alloc */
	size_t lents, lent_room;
	size_t taken; /* extents, lent ones included */
};

enum state { VACANT, RESERVED, ON_THE_WAY, DONE, TAKEN };

/* A request, from its submission until its ticket is waited for. Its tag and ticket are
 * generation << 32 | index. */
struct request {
	uint32_t generation;
	uint32_t entry; /* number of its entry, modulo 2^32 */
	uint8_t state;
	uint8_t op;
	bool kept;            /* the program has its ticket */
	bool hold;            /* its extent is needed until it is waited for */
	struct extent extent; /* holds copies */
	void *result;         /* the caller's array */
	uint64_t result_at, result_bytes;
	void *keys;     /* the caller's array for the keys of sums */
	uint64_t *rows; /* the caller's variable for the number of rows of a reduce or harvest */
	uint64_t keys_at;
	uint64_t n;
	uint64_t floats; /* in its rows */
	struct completion answer;
	uint32_t next; /* in the list of free requests */
};

struct libra_session {
	struct libra_info info; /* first, because libra_info is valid in every state */
	volatile uint32_t *guard; /* a page that the kernel clears in a forked child, or NULL */
	int pid;                  /* used without such a page */

	pthread_mutex_t lock; /* guards all fields below that change */
	pthread_cond_t changed;

	struct header *header;
	struct entry *sq;
	struct completion *cq;
	uint8_t *area;
	size_t memory_bytes;
	int socket;
	int epoll, own_event; /* -1 until libra_fd is called; own_event wakes its poller */
	struct buffers buffers;

	uint32_t sq_tail, cq_head; /* private copies: the agent only reads those in shared memory */
	uint32_t read;             /* entries whose extents have been released, follows sq_head */
	uint32_t on_the_way;       /* submitted, completion not yet read */
	uint64_t floats;           /* in their rows */
	uint32_t *requests_of;     /* place in the ring -> index of its request */
	struct request *requests;
	uint32_t requests_room, vacant; /* free requests: first of the list, or NONE */
	uint64_t next_step;
	uint64_t steps; /* pending barriers and reduces */

	bool sleeping; /* a thread polls for all */
	int ended;     /* 0, or the code with which the session ended */
	char ended_text[600];
	int64_t looked; /* time of the last look at the socket, in ns of CLOCK_MONOTONIC_COARSE */

	bool owner; /* of the job */

	int64_t look_ns;     /* time to poll for a completion before sleeping */
	int64_t look_credit; /* time that polling has saved, minus the time that it has wasted */

	int32_t room_ms;
	char job[64];
	char path[108];
	struct libra_session *next, **link; /* list of the process's sessions */
};

#define NONE UINT32_MAX

/* error.c */
struct libra_error *error_new(int code);
const char *refusal_text(int refusal);
const char *refusal_remedy(int refusal);
__attribute__((format(printf, 2, 3))) int error_set(int code, const char *format, ...);
void clean_text(char *to, size_t room, const char *from, size_t length);

/* buffers.c */
bool buffers_init(struct buffers *b, uint64_t bytes);
void buffers_destroy(struct buffers *b);
bool buffers_take(struct buffers *b, uint64_t bytes, struct extent *e);
void buffers_give(struct buffers *b, struct extent e);
bool buffers_lend(struct buffers *b, struct extent e);
bool buffers_return(struct buffers *b, uint64_t offset);

/* base.c */
int64_t now_ns(int clock);
bool session_forked(const struct libra_session *s);
int session_check(const struct libra_session *s, const char *what);

/* session.c */
int session_enlist(struct libra_session *s);
void session_free(struct libra_session *s);

/* ring.c: called with the lock held; pointers to requests are valid only while it is held */
int ring_reserve(struct libra_session *s, const char *what, uint64_t bytes, uint32_t *index);
int ring_submit(struct libra_session *s, const char *what, uint32_t index, struct entry *e);
void ring_look(struct libra_session *s);
void ring_look_at_socket(struct libra_session *s);
bool ring_sleep(struct libra_session *s, int64_t deadline);
void ring_arm(struct libra_session *s);
void ring_fail(struct libra_session *s, int code, const char *text);
int ring_ended(const struct libra_session *s, const char *what);
struct request *ring_find(struct libra_session *s, libra_ticket ticket);
void ring_vacate(struct libra_session *s, struct request *r);

/* codec.c */
struct coding {
	float up, down;            /* 2^scale, and its inverse */
	float one, two;            /* the least magnitudes with tags 1 and 2 */
	float unit[4], inverse[4]; /* by tag: what puts a code into the high bytes of a word, and its inverse */
};
struct coding_fault {
	size_t offset, value; /* of the bytes that are wrong, and the first value that they are about */
	const char *reason;
};
int codec_begin(struct coding *c, const char *what, int bound, int scale);
size_t codec_encode(const struct coding *c, const float *values, size_t n, uint8_t *coded);
size_t codec_encode_plain(const struct coding *c, const float *values, size_t n, uint8_t *coded);
bool codec_decode(const struct coding *c, const uint8_t *coded, size_t bytes, float *values, size_t n,
		  struct coding_fault *f);
bool codec_decode_plain(const struct coding *c, const uint8_t *coded, size_t bytes, size_t at, float *values, size_t n,
			size_t value, struct coding_fault *f);

#define NEVER INT64_MAX      /* a deadline */
#define LOOK_EVERY 100000000 /* ns between two looks at the socket by calls that do not wait */
#define LOOK_US 400          /* time to poll for a completion before sleeping */
#define LOOK_GAIN 8          /* the part of it that a successful poll saves: the cost of a sleep */
#define LOOK_REST 64         /* number of sleeps that make up for one unsuccessful poll */
#define LOOK_LOSS 16         /* the most that one unsuccessful poll counts, in polls */
#define LOOK_CREDIT 25       /* the most credit, in polls */
/* More pending floats keep agent and server busy for longer than it takes to wake a client, and
 * they need its processor. */
#define LOOK_FLOATS (1 << 14)

#endif
