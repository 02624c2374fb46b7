/* SPDX-License-Identifier: Apache-2.0 */
/* The van's start, thread and end. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define MAX_SERVERS 256 /* jobs of a range */

int64_t van_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

/* van_poke lets the thread look at everything. */
void van_poke(struct van *v)
{
	if (write(v->wake, &(uint64_t){1}, 8) < 0) {
		/* If it is full, it is readable. */
	}
}

struct patience van_patience(void)
{
	return (struct patience){.looked_ms = van_ms()};
}

/* van_left notes a look at what is waited for, and returns how much is left of the time for that. */
int64_t van_left(struct patience *p, int64_t most)
{
	int64_t now = van_ms(), since = now - p->looked_ms;

	p->looked_ms = now;
	p->spent_ms += since < LOOK_MS ? since : LOOK_MS;
	return most - p->spent_ms;
}

/* van_wait waits for a change until the next look is due, or returns false when the patience is at its end. */
bool van_wait(struct van *v, struct patience *p)
{
	int64_t left = van_left(p, UNANSWERED_MS), ms = left < LOOK_MS ? left : LOOK_MS;
	struct timespec until;

	if (left <= 0)
		return false;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += ms % 1000 * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(&v->changed, &v->lock, &until);
	return true;
}

/* van_fail ends the process with the first error, unless the van is ending anyway. */
void van_fail(struct van *v, const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	pthread_mutex_lock(&v->lock);
	bool first = !v->failed && !v->ending;
	v->failed = true;
	pthread_cond_broadcast(&v->changed);
	pthread_mutex_unlock(&v->lock);
	if (first)
		v->host.fail(v->host.self, text);
}

void van_warn(struct van *v, const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	v->host.warn(v->host.self, text);
}

/* step does what can be done, and returns when to do so again, if nothing happens before. */
static int64_t step(struct van *v, const struct pollfd *fds, size_t n)
{
	int64_t next = NEVER, t;

	for (size_t i = 0; i < n; i++) {
		struct session *s = v->sessions + i;
		if (fds[i].revents)
			session_look(v, s);
		push_step(v, s);
		if ((t = session_step(v, s)) < next)
			next = t;
	}
	if ((t = harvest_step(v)) < next)
		next = t;
	if ((t = gate_step(v)) < next)
		next = t;
	return next;
}

static void *run(void *arg)
{
	struct van *v = arg;
	struct pollfd fds[MAX_SERVERS + 1] = {{0}};
	uint64_t count;
	int64_t next = NEVER;

	for (;;) {
		pthread_mutex_lock(&v->lock);
		bool over = v->ending || v->failed;
		size_t n = v->n_sessions;
		for (size_t i = 0; i < n; i++)
			fds[1 + i] = (struct pollfd){.fd = v->sessions[i].ended ? -1 : v->sessions[i].fd, .events = POLLIN};
		pthread_mutex_unlock(&v->lock);
		if (over)
			return NULL;
		fds[0] = (struct pollfd){.fd = v->wake, .events = POLLIN};
		int64_t left = next == NEVER ? -1 : next - van_ms();
		if (next != NEVER && left < 0)
			left = 0;
		if (poll(fds, 1 + n, left > 1000 ? 1000 : (int)left) < 0)
			for (size_t i = 0; i <= n; i++) /* a signal */
				fds[i].revents = 0;
		if (fds[0].revents && read(v->wake, &count, 8) < 0) {
			/* Another look does no harm. */
		}
		next = step(v, fds + 1, n);
	}
}

static void destroy(struct van *v)
{
	if (v->wake >= 0)
		close(v->wake);
	keys_close(v);
	hotset_free(&v->hot);
	pthread_mutex_destroy(&v->lock);
	pthread_mutex_destroy(&v->opening);
	pthread_mutex_destroy(&v->keys.lock);
	pthread_cond_destroy(&v->changed);
	free(v);
}

struct van *van_new(const struct van_host *host, enum van_role role)
{
	struct van *v = calloc(1, sizeof *v);
	pthread_condattr_t monotonic;
	char error[512];

	if (!v)
		abort();
	v->host = *host;
	v->role = role;
	v->node = v->keys.fd = -1;
	pthread_mutex_init(&v->lock, NULL);
	pthread_mutex_init(&v->opening, NULL);
	pthread_mutex_init(&v->keys.lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&v->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	v->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (v->wake < 0)
		snprintf(error, sizeof error, "eventfd: %m");
	else if (settings_read(&v->set, host, error, sizeof error) &&
		 (!v->set.hot_set || hotset_read(&v->hot, v->set.hot_set, error, sizeof error))) {
		int code = pthread_create(&v->thread, NULL, run, v);
		if (!code)
			return v;
		errno = code;
		snprintf(error, sizeof error, "pthread_create: %m");
	}
	destroy(v);
	host->fail(host->self, error);
	return NULL;
}

bool van_open(struct van *v, int node, int servers)
{
	size_t n = v->role == VAN_WORKER ? (size_t)servers : v->role == VAN_SERVER ? 1 : 0;
	bool ok = true;

	pthread_mutex_lock(&v->opening);
	if (!*v->keys.path)
		ok = keys_open(v, node);
	if (ok && v->hot.n && !v->sessions && n) {
		if (n > MAX_SERVERS)
			van_fail(v, "DMLC_NUM_SERVER: %d; a range has at most %d jobs: use fewer servers, or no LIBRA_HOT_SET",
				 servers, MAX_SERVERS);
		v->sessions = n > MAX_SERVERS ? NULL : calloc(n, sizeof *v->sessions);
		ok = v->sessions;
		for (size_t i = 0; i < n && ok; i++)
			ok = session_open(v, v->sessions + i, v->role == VAN_WORKER ? (int)i : (node - 8) / 2,
					  v->role == VAN_SERVER);
		for (size_t i = 0; i < n && v->sessions && !ok; i++)
			libra_close(v->sessions[i].libra);
		pthread_mutex_lock(&v->lock);
		v->node = node;
		v->n_sessions = ok ? n : 0;
		pthread_mutex_unlock(&v->lock);
		van_poke(v);
	}
	if (ok && v->role == VAN_SERVER) {
		pthread_mutex_lock(&v->lock);
		gate_watch(v);
		pthread_mutex_unlock(&v->lock);
	}
	pthread_mutex_unlock(&v->opening);
	return ok;
}

/*
 * close_sessions ends the sessions, and a server's job with its own. Nothing is submitted any more.
 */
static void close_sessions(struct van *v)
{
	pthread_mutex_lock(&v->lock);
	size_t n = v->n_sessions;
	bool wait = v->stopping && !v->failed && v->parts == 0;
	v->n_sessions = 0;
	pthread_mutex_unlock(&v->lock);
	for (size_t i = 0; i < n; i++) {
		if (!wait)
			libra_shutdown(v->sessions[i].libra);
		libra_close(v->sessions[i].libra);
		for (struct part *part; (part = v->sessions[i].first);) {
			v->sessions[i].first = part->next;
			free(part);
		}
	}
}

enum van_way van_send(struct van *v, const struct van_message *m, struct van_rest *rest)
{
	struct session *s = v->role == VAN_WORKER && m->request && v->hot.n ? session_of(v, m->recver) : NULL;

	*rest = (struct van_rest){0};
	if (v->hot.n && harvest_answered(v, m))
		return VAN_TAKEN;
	if ((!v->hot.n && !v->set.keys_out) || !push_fits(m))
		return VAN_PASS;
	keys_note(v, m);
	return s ? push_send(v, s, m, rest) : VAN_PASS;
}

enum van_way van_receive(struct van *v, const struct van_message *m, void *message)
{
	pthread_mutex_lock(&v->lock);
	bool taken = (v->hot.n && (push_hold(v, m, message) || harvest_hold(v, m, message))) || gate_hold(v, m, message);
	pthread_mutex_unlock(&v->lock);
	return taken ? VAN_TAKEN : VAN_PASS;
}

void van_stop(struct van *v)
{
	struct patience patience = van_patience();

	pthread_mutex_lock(&v->lock);
	v->stopping = true;
	while (v->parts > 0 && !v->failed && van_wait(v, &patience)) {
	}
	bool given = harvest_last(v);
	size_t parts = v->parts;
	v->ending = true;
	pthread_mutex_unlock(&v->lock);
	if (parts)
		van_warn(v, "the end did not wait longer for pushes that are not acknowledged; the agent sends what it "
			 "has accepted");
	if (!given)
		van_warn(v, "the last sums of server %d are lost: app 0 had no customer whose handle has answered them",
			 v->sessions->rank);
	van_poke(v);
	pthread_join(v->thread, NULL);
	close_sessions(v);
	pthread_mutex_lock(&v->lock);
	v->stopped = true;
	pthread_mutex_unlock(&v->lock);
}

void van_free(struct van *v)
{
	pthread_mutex_lock(&v->lock);
	v->ending = true;
	bool stopped = v->stopped;
	pthread_mutex_unlock(&v->lock);
	if (!stopped) {
		van_poke(v);
		pthread_join(v->thread, NULL);
		close_sessions(v);
	}
	push_free(v);
	harvest_free(v);
	gate_free(v);
	free(v->sessions);
	destroy(v);
}
