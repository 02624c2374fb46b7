/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions with the agent: a server owns its job, a worker has a session with the job of each
 * server.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "internal.h"

#define OPEN_MS    60000    /* how long to wait for owners, and for the end of their predecessors */
#define DEAD_MS    5000     /* after the end of a job; a process that ends as it should is gone by then */
#define HEARD_MS   5000     /* after its first request a program's agents have heard of the end of jobs before its own */
#define LEAST_AREA (1 << 20)
#define MOST_AREA  (32 << 20)

/* area returns the size of a session's buffers. */
static uint64_t area(const struct van *v, bool owner)
{
	uint64_t all = v->hot.n * (8 + 4 * (uint64_t)v->hot.dim);

	if (owner) /* two harvests */
		return 2 * all + LEAST_AREA;
	return 4 * all < LEAST_AREA ? LEAST_AREA : 4 * all > MOST_AREA ? MOST_AREA : 4 * all;
}

static bool check(struct van *v, struct session *s, const char *job)
{
	const struct libra_info *info = libra_info(s->libra);

	if (info->exponent != v->set.exponent || info->arithmetic != LIBRA_EXACT) {
		van_fail(v, "LIBRA_HOT_EXPONENT: the van expects a unit of 2^%d, but that of job %s is 2^%d: set job.exponent "
			 "of the cluster file or the variable to the same number", v->set.exponent, job, info->exponent);
		return false;
	}
	s->fd = libra_fd(s->libra);
	if (s->fd < 0) {
		van_fail(v, "%s", libra_last_error()->text);
		return false;
	}
	return true;
}

/* memory allocates the places of an owner's two harvests. */
static bool memory(struct van *v, struct session *s)
{
	for (size_t i = 0; i < 2; i++) {
		struct harvest *h = v->harvests.at + i;
		h->keys = libra_alloc(s->libra, v->hot.n * 8);
		h->sums = libra_alloc(s->libra, v->hot.n * v->hot.dim * 4);
		if (!h->keys || !h->sums) {
			van_fail(v, "LIBRA_HOT_SET: no room for two harvests: %s", libra_last_error()->text);
			return false;
		}
	}
	return true;
}

/* open_once tries to open a session, and returns a code of the library. */
static int open_once(struct van *v, struct session *s, int rank, bool owner, const char *job)
{
	struct libra_options o = LIBRA_OPTIONS;
	char client[32];

	snprintf(client, sizeof client, "ps-lite %s", owner ? "server" : "worker");
	o.socket = v->host.variable(v->host.self, "LIBRA_AGENT");
	o.job = job;
	o.client = client;
	o.hot_set = v->hot.fingerprint;
	o.dim = v->hot.dim;
	o.owner = owner;
	o.buffer_bytes = area(v, owner);
	*s = (struct session){.rank = rank};
	return libra_open(&s->libra, &o);
}

/* open_session opens a session. Unless it may wait for the job's owner, it returns false without one. */
static bool open_session(struct van *v, struct session *s, int rank, bool owner, bool wait)
{
	int64_t end = van_ms() + (wait ? OPEN_MS : 0);
	char job[80];
	int code;

	snprintf(job, sizeof job, "%s/%d", v->set.job, rank);
	while ((code = open_once(v, s, rank, owner, job)) == LIBRA_NOT_OPEN || code == LIBRA_JOB_ENDED) {
		if (!wait)
			return false;
		if (van_ms() >= end)
			break;
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	if (code) {
		van_fail(v, "%s", libra_last_error()->text);
		return false;
	}
	return check(v, s, job) && (!owner || memory(v, s));
}

/* session_open opens a session. The job may have no owner yet, or still the one before. */
bool session_open(struct van *v, struct session *s, int rank, bool owner)
{
	return open_session(v, s, rank, owner, true);
}

/*
 * is_former returns whether a worker's session has ended before it was used, and early: its job was that of a program
 * before, of whose end this host's agent had not heard. A server's job is there when a program begins to send. If it
 * ends later, the server is dead, and the next job is another program's. Called with the lock held.
 */
static bool is_former(const struct van *v, const struct session *s)
{
	return s->ended && !s->used && s->ended_ms - v->first_ms < HEARD_MS;
}

/* renew opens a worker's session with a former job anew. */
static void renew(struct van *v, struct session *s)
{
	struct session next;

	pthread_mutex_lock(&v->opening);
	pthread_mutex_lock(&v->lock);
	bool former = is_former(v, s);
	pthread_mutex_unlock(&v->lock);
	if (former && open_session(v, &next, s->rank, false, false)) {
		libra_close(s->libra); /* which the thread does not look at any more */
		pthread_mutex_lock(&v->lock);
		*s = next;
		pthread_mutex_unlock(&v->lock);
		van_poke(v);
	}
	pthread_mutex_unlock(&v->opening);
}

/*
 * session_of returns a worker's session for a server that it is about to send a request to, or NULL if there is none or
 * its job has ended.
 */
struct session *session_of(struct van *v, int node)
{
	struct session *s = NULL;

	pthread_mutex_lock(&v->lock);
	if (!v->first_ms)
		v->first_ms = van_ms();
	for (size_t i = 0; i < v->n_sessions && !s; i++)
		if (8 + 2 * v->sessions[i].rank == node)
			s = v->sessions + i;
	if (s && is_former(v, s)) {
		pthread_mutex_unlock(&v->lock);
		renew(v, s);
		pthread_mutex_lock(&v->lock);
	}
	bool tell = s && s->ended && !s->told;
	if (tell) {
		s->told = true;
		van_poke(v); /* it counts from now on that requests were sent */
	}
	bool ended = s && s->ended;
	if (s)
		s->used = true;
	pthread_mutex_unlock(&v->lock);
	if (tell)
		van_warn(v, "server %d has ended, and its sums with it: requests to it will not be answered", s->rank);
	return ended ? NULL : s;
}

/*
 * session_gone notes that the job of a server has ended. A server that ends as it should has done
 * so when all workers have finished.
 */
static void session_gone(struct van *v, struct session *s)
{
	pthread_mutex_lock(&v->lock);
	bool first = !s->ended, tell = first && (s->first || s->lost) && !s->told;
	s->ended = true;
	if (first)
		s->ended_ms = van_ms();
	if (tell)
		s->told = true;
	pthread_mutex_unlock(&v->lock);
	if (tell)
		van_warn(v, "server %d has ended, and its sums with it: requests to it will not be answered", s->rank);
}

/* session_look sees completions, and the end of the session. */
void session_look(struct van *v, struct session *s)
{
	int code = libra_process(s->libra);

	if (code == LIBRA_JOB_ENDED && v->role == VAN_WORKER)
		session_gone(v, s);
	else if (code)
		van_fail(v, "%s %d: %s", v->role == VAN_WORKER ? "hot pairs for server" : "sums of server", s->rank,
			 libra_last_error()->text);
}

/*
 * session_step ends the process if a server is dead and the user wants that. It returns when to
 * call it again.
 */
int64_t session_step(struct van *v, struct session *s)
{
	pthread_mutex_lock(&v->lock);
	bool exits = s->ended && s->used && v->set.exit_if_dead;
	int64_t end = s->ended_ms + DEAD_MS;
	pthread_mutex_unlock(&v->lock);
	if (!exits)
		return NEVER;
	if (van_ms() >= end)
		van_fail(v, "server %d (node %d) has ended, and LIBRA_PS_DEAD is exit", s->rank, 8 + 2 * s->rank);
	return end;
}
