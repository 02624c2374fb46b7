/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for requests, by a call or by a descriptor. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static const char *mode_name(int mode)
{
	static const char *const names[] = {"combine", "fetchadd", "sync"};
	return mode >= 0 && mode <= 2 ? names[mode] : "one that this version of the library does not know";
}

/* failure sets the error of a request that the agent has answered. */
static int failure(const struct libra_session *s, const struct request *r)
{
	static const char *const names[] = {"request", "push", "pull", "push with sums", "flush",
					    "barrier", "prepare", "release", "statistics", "reduce", "sums",
					    "harvest"};
	static const char *const peers[] = {"a peer", "the aggregator", "the parameter server"};
	const struct completion *c = &r->answer;
	bool gradient = c->status == LIBRA_NOT_FINITE || c->status == LIBRA_OUT_OF_RANGE;
	struct libra_error *e = error_new((int)c->status);
	char own[256];
	size_t room = sizeof e->text, n;
	const char *text = s->ended == e->code ? s->ended_text : libra_code_text(e->code);

	if (c->status == LIBRA_REFUSED && !c->refusal) /* the end of a step, not a frame */
		text = "this host could not meet the other workers of the job: a process or an agent may have ended there; the agent's log "
		       "has the reason";
	if (c->status == LIBRA_REFUSED && c->refusal) {
		snprintf(own, sizeof own, "%s refused a frame", peers[c->peer <= 2 ? c->peer : 0]);
		text = own;
	}
	if (c->status == LIBRA_DROPPED && c->refusal)
		text = "the step was dropped for all, since a sum in it is too large for a float32: send smaller numbers";
	if (c->status == LIBRA_MODE) {
		snprintf(own, sizeof own, "the job's mode is %s: %s", mode_name(s->info.mode),
			 r->op == REDUCE ? "the sums of steps need job.sync: true in the cluster file, or libra run --sync"
					 : "sums in answers need mode fetchadd, which cluster files do not have: use libra_push and libra_pull");
		text = own;
	}
	if (c->status == LIBRA_PARTY_GONE && c->detail) {
		snprintf(own, sizeof own, "another client of this host that took part in the barrier has ended (process %" PRIu64
			 ", client %" PRIu32 " in the agent's log): start all of them anew", c->detail >> 32, (uint32_t)c->detail);
		text = own;
	}
	e->peer = c->peer;
	e->refusal = c->refusal;
	e->key_known = c->key_known == 1;
	e->key = c->key;
	e->index = gradient ? c->detail : c->status == LIBRA_PARTY_GONE ? (uint32_t)c->detail : 0;
	e->acknowledged = c->acknowledged;
	e->refused = c->refused;
	e->unknown = c->unknown;

	/* The remedy is what follows a colon; what is known of the place stands before it. */
	const char *remedy = strstr(text, ": ");
	if (!remedy)
		remedy = text + strlen(text);
	int cause = (int)(remedy - text);
	if (c->refusal && c->status != LIBRA_DROPPED)
		remedy = refusal_remedy(c->refusal);

	n = (size_t)snprintf(e->text, room, "%s", names[r->op]);
	if (r->n && !r->rows)
		n += (size_t)snprintf(e->text + n, room - n, " of %" PRIu64 " keys", r->n);
	n += (size_t)snprintf(e->text + n, room - n, ", job %s: %.*s", s->job, cause, text);
	if (gradient && n < room)
		n += (size_t)snprintf(e->text + n, room - n, ": number %" PRIu64, c->detail);
	if (e->key_known && n < room)
		n += (size_t)snprintf(e->text + n, room - n, ", key %" PRIu64, c->key);
	if (c->status == LIBRA_BAD_STEP && n < room)
		n += (size_t)snprintf(e->text + n, room - n, ", which is %" PRIu64, c->detail);
	if (c->refusal && c->status != LIBRA_DROPPED && n < room)
		n += (size_t)snprintf(e->text + n, room - n, ": %s", refusal_text(c->refusal));
	if (c->acknowledged + c->refused + c->unknown && n < room)
		n += (size_t)snprintf(e->text + n, room - n, "; of its frames %u were applied, %u were not, %u may have been",
				      c->acknowledged, c->refused, c->unknown);
	if (n < room)
		snprintf(e->text + n, room - n, "%s", remedy);
	return e->code;
}

int libra_wait(struct libra_session *s, libra_ticket ticket, int timeout_ms)
{
	int code = session_check(s, __func__);

	if (code)
		return code;

	int64_t deadline = NEVER;
	struct request *r;

	pthread_mutex_lock(&s->lock);
	ring_look(s);
	for (;;) {
		r = ring_find(s, ticket);
		if (!r || (r->state != ON_THE_WAY && r->state != DONE) || !r->kept) {
			pthread_mutex_unlock(&s->lock);
			return error_set(LIBRA_USAGE, "%s: no request has this ticket: it was waited for before, or never given",
					 __func__);
		}
		if (r->state == DONE)
			break;
		if (deadline == NEVER && timeout_ms > 0)
			deadline = now_ns(CLOCK_MONOTONIC) + timeout_ms * (int64_t)1000000;
		if (timeout_ms == 0 || !ring_sleep(s, deadline)) {
			if (timeout_ms == 0) {
				int64_t now = now_ns(CLOCK_MONOTONIC_COARSE);
				if (now - s->looked > LOOK_EVERY) {
					s->looked = now;
					ring_look_at_socket(s);
					continue;
				}
			}
			pthread_mutex_unlock(&s->lock);
			return error_set(LIBRA_TIMEOUT, "%s: the request is not complete after %d ms", __func__, timeout_ms);
		}
	}

	if (r->answer.status) {
		code = failure(s, r);
	} else if (r->op == PREPARE) {
		*(struct libra_batch *)r->result = (struct libra_batch){r->answer.detail, r->n};
	} else if (r->result || r->keys || r->rows) {
		struct request t = *r;
		if (t.rows) {
			*t.rows = t.answer.detail;
			if (t.answer.detail < t.n) { /* the agent wrote no more */
				t.result_bytes = t.result_bytes / t.n * t.answer.detail;
				t.n = t.answer.detail;
			}
		}
		r->state = TAKEN; /* the ticket is void already */
		pthread_mutex_unlock(&s->lock);
		if (t.result)
			memcpy(t.result, s->area + t.result_at, t.result_bytes);
		if (t.keys)
			memcpy(t.keys, s->area + t.keys_at, t.n * 8);
		pthread_mutex_lock(&s->lock);
		r = s->requests + (uint32_t)ticket;
	}
	ring_vacate(s, r);
	pthread_mutex_unlock(&s->lock);
	return code;
}

int libra_accepted(struct libra_session *s, libra_ticket ticket)
{
	if (session_check(s, __func__))
		return 1;
	pthread_mutex_lock(&s->lock);
	ring_look(s);
	struct request *r = ring_find(s, ticket);
	bool accepted = !r || r->state != ON_THE_WAY || (int32_t)(s->read - r->entry) > 0;
	pthread_mutex_unlock(&s->lock);
	return accepted;
}

int libra_fd(struct libra_session *s)
{
	if (session_check(s, __func__))
		return -1;
	pthread_mutex_lock(&s->lock);
	if (s->epoll < 0) {
		int epoll = epoll_create1(EPOLL_CLOEXEC), own = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		int fds[] = {s->socket, own};
		bool ok = epoll >= 0 && own >= 0;
		for (size_t i = 0; ok && i < 2; i++)
			ok = epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &(struct epoll_event){.events = EPOLLIN}) == 0;
		if (ok) {
			s->own_event = own;
			s->epoll = epoll;
			ring_arm(s);
			/* Completions that are already here must be seen. */
			if (write(own, &(uint64_t){1}, 8) < 0)
				ok = false;
		}
		if (!ok) {
			error_set(LIBRA_SYSTEM, "%s: epoll and eventfd: %m", __func__);
			s->epoll = s->own_event = -1;
			if (epoll >= 0)
				close(epoll);
			if (own >= 0)
				close(own);
		}
	}
	int fd = s->epoll;
	pthread_mutex_unlock(&s->lock);
	return fd;
}

int libra_process(struct libra_session *s)
{
	int code = session_check(s, __func__);
	uint64_t count;

	if (code)
		return code;
	pthread_mutex_lock(&s->lock);
	/* Wake-ups first, then the ring: a completion in between is seen twice rather than
	 * missed. */
	ring_look_at_socket(s);
	ring_look(s);
	if (s->epoll >= 0) {
		ring_arm(s);
		if (read(s->own_event, &count, sizeof count) < 0) {
			/* Empty. */
		}
	}
	if (s->ended)
		code = ring_ended(s, __func__);
	pthread_mutex_unlock(&s->lock);
	return code;
}
