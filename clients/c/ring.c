/* SPDX-License-Identifier: Apache-2.0 */
/* Pending requests: buffer space, submission, completions, sleeping. All functions are called with
 * the session's lock held. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

int ring_ended(const struct libra_session *s, const char *what)
{
	return error_set(s->ended, "%s: %s", what, s->ended_text);
}

__attribute__((format(printf, 2, 3))) static void broken(struct libra_session *s, const char *format, ...)
{
	char how[128], text[400];
	va_list args;

	va_start(args, format);
	vsnprintf(how, sizeof how, format, args);
	va_end(args);
	snprintf(text, sizeof text, "the agent at %s (process %u) broke the protocol: %s", s->path, s->info.agent_pid, how);
	ring_fail(s, LIBRA_PROTOCOL, text);
	shutdown(s->socket, SHUT_RDWR);
}

/* give frees the extent of a request. */
static void give(struct libra_session *s, struct request *r)
{
	buffers_give(&s->buffers, r->extent);
	r->extent.bytes = 0;
}

/* ring_vacate frees a request and its ticket. */
void ring_vacate(struct libra_session *s, struct request *r)
{
	give(s, r);
	r->state = VACANT;
	r->next = s->vacant;
	s->vacant = (uint32_t)(r - s->requests);
}

/* ring_fail ends the session: it fails all pending and later requests. */
void ring_fail(struct libra_session *s, int code, const char *text)
{
	if (s->ended)
		return;
	s->ended = code;
	snprintf(s->ended_text, sizeof s->ended_text, "%s", text);
	for (uint32_t i = 0; i < s->requests_room; i++) {
		struct request *r = s->requests + i;
		if (r->state != ON_THE_WAY)
			continue;
		s->on_the_way--;
		r->state = DONE;
		r->answer = (struct completion){.status = (uint32_t)code};
		if (!r->kept)
			ring_vacate(s, r);
	}
	pthread_cond_broadcast(&s->changed);
	if (s->own_event >= 0 && write(s->own_event, &(uint64_t){1}, 8) < 0) {
		/* If it is full, it is readable. */
	}
}

static struct request *vacant(struct libra_session *s)
{
	if (s->vacant == NONE) {
		uint32_t room = s->requests_room ? s->requests_room * 2 : s->info.entries;
		if (room <= s->requests_room || room == NONE)
			return NULL;
		struct request *r = realloc(s->requests, room * sizeof *r);
		if (!r)
			return NULL;
		s->requests = r;
		memset(r + s->requests_room, 0, (room - s->requests_room) * sizeof *r);
		for (uint32_t i = room; i-- > s->requests_room;) {
			r[i].next = s->vacant;
			s->vacant = i;
		}
		s->requests_room = room;
	}
	struct request *r = s->requests + s->vacant;
	s->vacant = r->next;
	*r = (struct request){.generation = r->generation + 1};
	if (r->generation == 0) /* tickets are never 0 */
		r->generation = 1;
	return r;
}

struct request *ring_find(struct libra_session *s, libra_ticket ticket)
{
	uint32_t i = (uint32_t)ticket;

	if (i >= s->requests_room || s->requests[i].generation != ticket >> 32 || s->requests[i].state == VACANT)
		return NULL;
	return s->requests + i;
}

/* passed processes the entries that the agent has read: their keys and gradients may be
 * overwritten. */
static void passed(struct libra_session *s)
{
	uint32_t head = atomic_load_explicit(&s->header->sq_head, memory_order_acquire);

	if (head - s->read > s->sq_tail - s->read) {
		broken(s, "it has read %u entries of %u", head, s->sq_tail);
		return;
	}
	for (; s->read != head; s->read++) {
		struct request *r = s->requests + s->requests_of[s->read & (s->info.entries - 1)];
		if (!r->hold)
			give(s, r);
	}
}

static bool complete(struct libra_session *s, const struct completion *c)
{
	struct request *r = ring_find(s, c->tag);

	if (!r || r->state != ON_THE_WAY || r->op != c->op || (int32_t)(s->read - r->entry) <= 0 ||
	    c->status >= LIBRA_NO_AGENT)
		return false;
	r->answer = *c;
	r->state = DONE;
	s->on_the_way--;
	s->floats -= r->floats;
	if (r->op == BARRIER || r->op == REDUCE) {
		s->steps--;
		/* Unless a step was dropped, a failed barrier has not ended it. Pending barriers
		 * are for the current step and later ones. */
		if (c->status && c->status != LIBRA_DROPPED)
			s->next_step = c->status == LIBRA_BAD_STEP ? c->detail + s->steps : s->next_step - 1;
	}
	if (!r->kept)
		ring_vacate(s, r);
	return true;
}

/* ring_look reads new completions. */
void ring_look(struct libra_session *s)
{
	if (s->ended)
		return;

	/* The agent ends a session after its last completion, so in this order none is missed. */
	uint32_t end = atomic_load_explicit(&s->header->end_code, memory_order_acquire);
	uint32_t tail = atomic_load_explicit(&s->header->cq_tail, memory_order_acquire);
	uint32_t waiting = tail - s->cq_head;

	passed(s);
	if (s->ended)
		return;
	if (waiting > s->info.entries) {
		broken(s, "its completions jumped from %u to %u", s->cq_head, tail);
		return;
	}
	for (; s->cq_head != tail; s->cq_head++) {
		struct completion c = s->cq[s->cq_head & (s->info.entries - 1)];
		if (!complete(s, &c)) {
			broken(s, "completion %u fits no request", s->cq_head);
			return;
		}
	}
	if (waiting) {
		atomic_store_explicit(&s->header->cq_head, tail, memory_order_release);
		if (s->own_event >= 0 && write(s->own_event, &(uint64_t){1}, 8) < 0) {
			/* If it is full, it is readable. */
		}
	}
	if (end) {
		char said[sizeof s->header->end_text], text[600];
		clean_text(said, sizeof said, s->header->end_text, sizeof s->header->end_text);
		snprintf(text, sizeof text, "the agent at %.107s ended the session: %.400s", s->path,
			 *said ? said : libra_code_text((int)end));
		/* The agent must not send the library's own codes. */
		if (end >= LIBRA_NO_AGENT)
			broken(s, "it ended the session with code %u", end);
		else
			ring_fail(s, (int)end, text);
	}
}

/*
 * ring_look_at_socket receives wake-ups and checks whether the agent is alive. While a thread
 * polls, it leaves the wake-ups to that thread, which would not wake without them. It re-arms the
 * descriptor for a program that polls it.
 */
void ring_look_at_socket(struct libra_session *s)
{
	char byte, text[400];
	ssize_t n = 1;

	if (s->ended || s->sleeping)
		return;
	for (int i = 0; i < 64 && n > 0; i++) /* bounds the loop if the agent sends more */
		n = recv(s->socket, &byte, 1, MSG_DONTWAIT);
	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) {
		if (s->epoll >= 0)
			ring_arm(s);
		return;
	}
	ring_look(s); /* its last completions */
	if (s->ended)
		return;
	snprintf(text, sizeof text, "the agent at %s (process %u) has died: open a session with its successor",
		 s->path, s->info.agent_pid);
	ring_fail(s, LIBRA_AGENT_DIED, text);
}

static bool changed(const struct libra_session *s)
{
	return atomic_load_explicit(&s->header->cq_tail, memory_order_relaxed) != s->cq_head ||
	       atomic_load_explicit(&s->header->end_code, memory_order_relaxed);
}

/*
 * ring_arm ensures that the next completion makes the socket readable. While a thread polls, it is
 * armed or a wake-up has arrived.
 */
void ring_arm(struct libra_session *s)
{
	while (!s->ended && !s->sleeping) {
		atomic_store_explicit(&s->header->client_sleeps, 1, memory_order_relaxed);
		atomic_thread_fence(memory_order_seq_cst);
		if (!changed(s))
			return;
		atomic_store_explicit(&s->header->client_sleeps, 0, memory_order_relaxed);
		ring_look(s);
	}
}

/*
 * look polls for a change without sleeping, and returns whether there is one. Between two polls it
 * yields the processor, which the agent may need; but on a busy processor a yield takes longer than
 * a sleep. So it polls only while that saves more time than unsuccessful polls waste.
 */
static bool look(struct libra_session *s, int64_t deadline)
{
	const int64_t most = s->look_ns * LOOK_CREDIT;
	uint32_t seen = s->cq_head;
	bool found;

	if (s->floats > LOOK_FLOATS)
		return false;
	if (s->look_credit < 0) {
		s->look_credit += s->look_ns / LOOK_REST;
		return false;
	}
	int64_t start = now_ns(CLOCK_MONOTONIC), took, limit = s->look_ns;
	if (limit > deadline - start)
		limit = deadline - start;
	s->sleeping = true; /* one thread looks for all */
	pthread_mutex_unlock(&s->lock);
	do {
		sched_yield();
		found = atomic_load_explicit(&s->header->cq_tail, memory_order_relaxed) != seen ||
			atomic_load_explicit(&s->header->end_code, memory_order_relaxed);
		took = now_ns(CLOCK_MONOTONIC) - start;
	} while (!found && took <= limit);
	pthread_mutex_lock(&s->lock);
	s->sleeping = false;
	/* A poll that took too long counts as unsuccessful even if there is a change now. */
	if (took <= limit)
		s->look_credit += s->look_ns / LOOK_GAIN;
	else
		s->look_credit -= took < s->look_ns * LOOK_LOSS ? took : s->look_ns * LOOK_LOSS;
	if (s->look_credit > most)
		s->look_credit = most;
	if (s->look_credit < -most)
		s->look_credit = -most;
	return found;
}

static struct timespec timespec(int64_t ns)
{
	return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

/*
 * ring_sleep releases the lock, waits for a change until a deadline of CLOCK_MONOTONIC, and reads
 * completions. One thread polls for all. It returns false at the deadline.
 */
bool ring_sleep(struct libra_session *s, int64_t deadline)
{
	if (deadline != NEVER && deadline <= now_ns(CLOCK_MONOTONIC))
		return false;
	if (s->sleeping) {
		struct timespec t = timespec(deadline);
		if (deadline == NEVER)
			pthread_cond_wait(&s->changed, &s->lock);
		else
			pthread_cond_timedwait(&s->changed, &s->lock, &t);
		return true;
	}
	uint32_t before = s->cq_head;
	bool found = look(s, deadline);
	if (!found)
		ring_arm(s);
	if (!found && !s->ended && s->cq_head == before) { /* otherwise the caller has something to read */
		struct pollfd p = {.fd = s->socket, .events = POLLIN};
		int64_t left = deadline == NEVER ? 0 : deadline - now_ns(CLOCK_MONOTONIC);
		struct timespec t = timespec(left > 0 ? left : 0);
		s->sleeping = true;
		pthread_mutex_unlock(&s->lock);
		int n = ppoll(&p, 1, deadline == NEVER ? NULL : &t, NULL);
		pthread_mutex_lock(&s->lock);
		s->sleeping = false;
		atomic_store_explicit(&s->header->client_sleeps, 0, memory_order_relaxed);
		if (n > 0)
			ring_look_at_socket(s);
	}
	ring_look(s);
	if (s->epoll >= 0)
		ring_arm(s);
	else
		atomic_store_explicit(&s->header->client_sleeps, 0, memory_order_relaxed);
	pthread_cond_broadcast(&s->changed); /* the next thread polls */
	return true;
}

/* ring_reserve waits for space for a request and `bytes` of copies. */
int ring_reserve(struct libra_session *s, const char *what, uint64_t bytes, uint32_t *index)
{
	int64_t deadline = NEVER, now = now_ns(CLOCK_MONOTONIC_COARSE);
	struct extent e;

	if (now - s->looked > LOOK_EVERY) {
		s->looked = now;
		ring_look_at_socket(s);
	}
	if (bytes > s->buffers.bytes)
		return error_set(LIBRA_TOO_LARGE, "%s: it takes %llu bytes, but the session's buffers have %llu: "
				 "ask for more buffer_bytes, or make it smaller", what, (unsigned long long)bytes,
				 (unsigned long long)s->buffers.bytes);
	for (;;) {
		ring_look(s);
		if (s->ended)
			return ring_ended(s, what);
		if (s->on_the_way < s->info.entries) {
			if (buffers_take(&s->buffers, bytes, &e))
				break;
			if (s->on_the_way == 0)
				return error_set(LIBRA_TOO_LARGE, "%s: the session's buffers have no room for %llu bytes: arrays "
						 "of libra_alloc and results that were not waited for take it; ask for more "
						 "buffer_bytes", what, (unsigned long long)bytes);
		}
		if (deadline == NEVER && s->room_ms)
			deadline = now_ns(CLOCK_MONOTONIC) + s->room_ms * (int64_t)1000000;
		if (!ring_sleep(s, deadline))
			return error_set(LIBRA_TIMEOUT, "%s: the agent made no room within %d ms; nothing was submitted",
					 what, s->room_ms);
	}
	struct request *r = vacant(s);
	if (!r) {
		buffers_give(&s->buffers, e);
		return error_set(LIBRA_NO_MEMORY, "%s: %s", what, libra_code_text(LIBRA_NO_MEMORY));
	}
	r->state = RESERVED;
	r->extent = e;
	s->on_the_way++;
	*index = (uint32_t)(r - s->requests);
	return LIBRA_OK;
}

/* ring_submit passes an entry to the agent, and wakes the agent if it sleeps. */
int ring_submit(struct libra_session *s, const char *what, uint32_t index, struct entry *e)
{
	struct header *h = s->header;
	struct request *r = s->requests + index;
	uint32_t place = s->sq_tail & (s->info.entries - 1);

	if (s->ended) {
		s->on_the_way--;
		ring_vacate(s, r);
		return ring_ended(s, what);
	}
	if (r->op == BARRIER || r->op == REDUCE) {
		e->step = s->next_step++;
		s->steps++;
	}
	e->op = r->op;
	e->tag = (uint64_t)r->generation << 32 | index;
	s->sq[place] = *e;
	s->requests_of[place] = index;
	r->entry = s->sq_tail++;
	r->state = ON_THE_WAY;
	r->floats = (uint64_t)e->n * e->dim;
	s->floats += r->floats;

	atomic_store_explicit(&h->sq_tail, s->sq_tail, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&h->agent_sleeps, memory_order_relaxed) == 1 &&
	    atomic_exchange_explicit(&h->agent_sleeps, 0, memory_order_relaxed) == 1 &&
	    send(s->socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
		/* The socket is full of wake-ups, or the agent has died, which waiting calls
		 * detect. */
	}
	return LIBRA_OK;
}
