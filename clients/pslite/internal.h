/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the van's files share.
 *
 * van.c starts and stops, has the thread, and passes messages on; push.c keeps pushes until both of
 * their parts are acknowledged, harvest.c gives sums to the server's handle and keeps pulls until
 * then, session.c opens sessions and judges their ends, gate.c keeps messages until their customer
 * exists, keys.c writes the keys of some pushes, settings.c reads the variables, hotset.c reads the
 * hot set, split.c finds hot keys in messages, sha256.c checks files. Each file calls only files that this list names after it, and
 * the time, poke, failures and warnings of van.c.
 */
#ifndef VAN_INTERNAL_H
#define VAN_INTERNAL_H

#include <pthread.h>

#include "../c/libra.h"
#include "van.h"

#define UNANSWERED_MS 5000  /* the most that a handle leaves a harvest unanswered, and that van_stop waits for each thing */
#define BUSY_MS       60000 /* the most that it takes for a harvest and what it had to do before */
#define LOOK_MS       1000  /* the longest time between two looks at what is waited for */

/*
 * How long something has been waited for. At most LOOK_MS count from one look to the next: a process that was stopped
 * meanwhile had no time to answer.
 */
struct patience {
	int64_t looked_ms, spent_ms;
};

struct hotset {
	uint64_t *keys; /* ascending */
	size_t n;
	uint32_t *first; /* key of each bucket, and the end; see split_index */
	uint64_t buckets;
	unsigned shift;
	uint32_t dim;
	uint8_t fingerprint[32];
};

struct settings {
	const char *hot_set; /* path, or NULL: there are no hot pairs */
	char job[60];        /* name of the range */
	int exponent;
	int64_t staleness_ms;
	bool exit_if_dead;
	const char *keys_out; /* folder, or NULL */
};

/* A message that waits for its customer. */
struct gated {
	void *kept;
	int app, customer;
	struct gated *next;
};

/* A customer that has been seen. */
struct customer {
	int app, id;
	int64_t seen_ms;
	bool open; /* gets its messages */
};

struct gate {
	struct gated *first, **last;
	struct customer *known;
	size_t n, room;
};

/* A push whose response is not yet handed over. */
struct pending {
	int server, customer, timestamp;
	size_t parts;   /* hot parts that are not acknowledged, and 1 while it is being submitted */
	void *response; /* kept, or NULL */
	struct pending *next;
};

/* A hot part that was submitted, or is about to be. */
struct part {
	libra_ticket ticket; /* 0 until it is submitted */
	struct pending *of;
	struct part *next;
};

/* A session with a job: a server's own, or one of a worker's with each server. */
struct session {
	struct libra_session *libra;
	int rank; /* of the server */
	int fd;
	struct part *first, **last;
	bool waits;   /* the thread has seen that the first part is not submitted yet */
	bool used;    /* a request was sent to the server */
	bool lost;    /* a part failed, since the job has ended; why is not known until the session ends */
	bool ended;   /* the job has ended with its server */
	bool told;    /* that it has */
	int64_t ended_ms;
};

#define PENDING_LISTS 1024

struct harvest {
	libra_ticket ticket; /* 0: the place is free */
	uint64_t number;
	int64_t asked_ms;
	bool now, done; /* done: it has come */
	uint64_t *keys, rows;
	float *sums;
};

/* A pull that waits for a harvest. */
struct held {
	void *kept; /* NULL: van_stop waits */
	int app, customer;
	uint64_t need; /* number of the harvest, 0: not yet requested */
	struct held *next;
};

/*
 * A server's harvests, of which at most two are requested: one that is due some time, and one at
 * once behind it.
 */
struct harvests {
	struct harvest at[2];
	unsigned first, count;
	uint64_t submitted; /* number of the last one */
	uint64_t given;     /* number of the one that the handle has, or 0 */
	struct patience patience; /* with its customer */
	bool returned;            /* the handle has, and patience begins anew */
	int64_t given_asked_ms;
	uint64_t answered;
	int64_t answered_asked_ms; /* of the newest whose sums the store has */
	int timestamp;             /* of the last one given */
	struct held *held, **last;
	size_t unasked; /* pulls without a harvest */
};

#define KEYS_SERVERS 512 /* numbers of servers, which are even, are below it */

/* What is written of pushes' keys. */
struct keys {
	pthread_mutex_t lock;
	int fd; /* -1: nothing is written */
	uint32_t pushes[KEYS_SERVERS];
	char path[4096];
};

struct van {
	struct van_host host;
	enum van_role role;
	struct settings set;
	struct hotset hot;

	pthread_mutex_t opening; /* held during van_open, before `lock` */
	pthread_mutex_t lock;    /* guards all fields below; never held during calls of the host, but `keep` */
	pthread_cond_t changed;
	pthread_t thread;
	int wake; /* an eventfd */
	bool stopping, ending, stopped, failed;

	int node;
	struct session *sessions; /* do not move when there are any */
	size_t n_sessions;
	int64_t first_ms; /* when a worker sent its first request to a server, or 0 */

	struct gate gate;
	struct pending *pending[PENDING_LISTS];
	size_t parts; /* hot parts in flight */
	struct harvests harvests;
	struct keys keys;
};

/* van.c */
int64_t van_ms(void);
void van_poke(struct van *v);
struct patience van_patience(void);
int64_t van_left(struct patience *p, int64_t most);
bool van_wait(struct van *v, struct patience *p); /* lock held */
__attribute__((format(printf, 2, 3))) void van_fail(struct van *v, const char *format, ...);
__attribute__((format(printf, 2, 3))) void van_warn(struct van *v, const char *format, ...);

/* push.c */
enum van_way push_send(struct van *v, struct session *s, const struct van_message *m, struct van_rest *rest);
bool push_fits(const struct van_message *m);
bool push_hold(struct van *v, const struct van_message *m, void *message); /* lock held */
void push_step(struct van *v, struct session *s);
void push_free(struct van *v);

/* harvest.c */
bool harvest_hold(struct van *v, const struct van_message *m, void *message); /* lock held */
bool harvest_answered(struct van *v, const struct van_message *m);
int64_t harvest_step(struct van *v);
bool harvest_last(struct van *v); /* lock held */
void harvest_free(struct van *v);

/* session.c */
bool session_open(struct van *v, struct session *s, int rank, bool owner);
struct session *session_of(struct van *v, int node);
void session_look(struct van *v, struct session *s);
int64_t session_step(struct van *v, struct session *s);

/* gate.c */
int gate_customer(const struct van *v, const struct van_message *m);
bool gate_hold(struct van *v, const struct van_message *m, void *message); /* lock held */
void gate_watch(struct van *v); /* lock held */
bool gate_is_open(const struct gate *g, int app, int id); /* lock held */
void gate_give(struct van *v, void *kept, int app, int customer);
int64_t gate_step(struct van *v);
void gate_free(struct van *v);

/* keys.c */
bool keys_open(struct van *v, int node);
void keys_note(struct van *v, const struct van_message *m);
void keys_close(struct van *v); /* `keys.lock` held, or no other call in progress */

/* settings.c */
bool settings_read(struct settings *set, const struct van_host *host, char *error, size_t room);

/* split.c */
#define SPLIT_PAD 3 /* keys that the array of a hot set has room for behind the last */
bool split_index(struct hotset *hot);
bool split_ascend(const uint64_t *keys, size_t n);
bool split_names(const struct hotset *hot, const uint64_t *keys, size_t n);
size_t split_find(const struct hotset *hot, const uint64_t *keys, size_t n, size_t **places);

/* hotset.c */
bool hotset_read(struct hotset *hot, const char *path, char *error, size_t room);
void hotset_free(struct hotset *hot);

/* sha256.c */
struct sha256 {
	uint32_t state[8];
	uint64_t bytes;
	uint8_t block[64];
};
void sha256_begin(struct sha256 *h);
void sha256_add(struct sha256 *h, const void *data, size_t n);
void sha256_end(struct sha256 *h, uint8_t digest[32]);

#define NEVER INT64_MAX

#endif
