/* SPDX-License-Identifier: Apache-2.0 */
/* A session after its handshake: fork, end, close. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define PART_MS 10000 /* how long libra_close waits for an agent that does not run */

/*
 * Sessions of this process. A child of fork(2) closes their descriptors: otherwise the agent would
 * not notice the death of the parent, and would keep the session's memory.
 */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct libra_session *list;

static void before_fork(void)
{
	pthread_mutex_lock(&list_lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&list_lock);
}

static void close_all(struct libra_session *s)
{
	int fds[] = {s->socket, s->epoll, s->own_event};

	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	s->socket = s->epoll = s->own_event = -1;
}

static void in_child(void)
{
	struct libra_session *next;

	for (struct libra_session *s = list; s; s = next) {
		next = s->next;
		close_all(s);
		s->next = NULL;
		s->link = NULL;
	}
	list = NULL;
	pthread_mutex_unlock(&list_lock);
}

static int once_result;

static void once(void)
{
	once_result = pthread_atfork(before_fork, in_parent, in_child);
}

/* session_enlist adds a session to the process's list. */
int session_enlist(struct libra_session *s)
{
	static pthread_once_t done = PTHREAD_ONCE_INIT;

	pthread_once(&done, once);
	if (once_result)
		return error_set(LIBRA_NO_MEMORY, "libra_open: pthread_atfork: %s", strerror(once_result));
	s->pid = getpid();
	/* The kernel clears this page in a child, even if the child was not created by libc's
	 * fork. */
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return error_set(LIBRA_NO_MEMORY, "libra_open: mmap of a page: %m");
	if (madvise(page, PAGE, MADV_WIPEONFORK) == 0) {
		s->guard = page;
		*s->guard = 1;
	} else { /* Linux before 4.14: each call checks the process ID */
		munmap(page, PAGE);
	}
	pthread_mutex_lock(&list_lock);
	s->next = list;
	s->link = &list;
	if (list)
		list->link = &s->next;
	list = s;
	pthread_mutex_unlock(&list_lock);
	return LIBRA_OK;
}

/* session_free frees this process's part of a session, which may be only partly open. */
void session_free(struct libra_session *s)
{
	bool child = s->pid && session_forked(s);

	pthread_mutex_lock(&list_lock); /* also to read `link`, which the end of another session changes */
	if (s->link) {
		*s->link = s->next;
		if (s->next)
			s->next->link = s->link;
	}
	pthread_mutex_unlock(&list_lock);
	if (!child) {
		close_all(s);
		if (s->header)
			munmap(s->header, s->memory_bytes);
		pthread_mutex_destroy(&s->lock);
		pthread_cond_destroy(&s->changed);
	}
	if (s->guard)
		munmap((void *)s->guard, PAGE);
	buffers_destroy(&s->buffers);
	free(s->requests_of);
	free(s->requests);
	free(s);
}

int libra_shutdown(struct libra_session *s)
{
	int code = session_check(s, __func__);

	if (code)
		return code;
	pthread_mutex_lock(&s->lock);
	ring_fail(s, LIBRA_CLOSED, libra_code_text(LIBRA_CLOSED));
	/* Shutting down reading wakes the thread that polls. If there is none, libra_close can
	 * still see the agent's end. */
	shutdown(s->socket, s->sleeping ? SHUT_RDWR : SHUT_WR);
	pthread_mutex_unlock(&s->lock);
	return LIBRA_OK;
}

/*
 * part waits until the agent has noticed the end of the session. Then another session can take its
 * place, which matters where the number of clients or parties is limited.
 */
static void part(struct libra_session *s)
{
	int64_t end = now_ns(CLOCK_MONOTONIC) + PART_MS * (int64_t)1000000, left;
	char byte;

	shutdown(s->socket, SHUT_WR);
	while ((left = end - now_ns(CLOCK_MONOTONIC)) > 0) {
		struct pollfd p = {.fd = s->socket, .events = POLLIN};
		if (poll(&p, 1, (int)(left / 1000000)) <= 0)
			continue;
		ssize_t n = recv(s->socket, &byte, 1, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EINTR))
			return;
	}
}

int libra_close(struct libra_session *s)
{
	if (!s)
		return LIBRA_OK;
	if (session_forked(s)) {
		session_free(s);
		return LIBRA_OK;
	}

	int code = libra_flush(s, NULL);
	if (code == LIBRA_CLOSED) /* as the program requested */
		code = LIBRA_OK;
	part(s);
	session_free(s);
	return code;
}

const struct libra_info *libra_info(const struct libra_session *s)
{
	return s ? &s->info : NULL;
}

void *libra_alloc(struct libra_session *s, size_t bytes)
{
	struct extent e;
	void *array = NULL;

	if (session_check(s, __func__))
		return NULL;
	pthread_mutex_lock(&s->lock);
	if (bytes == 0)
		bytes = 1;
	ring_look(s); /* the agent may have read the entries that take the space */
	if (!buffers_take(&s->buffers, bytes, &e)) {
		error_set(LIBRA_TOO_LARGE,
			  "%s: the session's buffers of %llu bytes have no room for %zu more: ask for more buffer_bytes",
			  __func__, (unsigned long long)s->info.buffer_bytes, bytes);
	} else if (!buffers_lend(&s->buffers, e)) {
		buffers_give(&s->buffers, e);
		error_set(LIBRA_NO_MEMORY, "%s: %s", __func__, libra_code_text(LIBRA_NO_MEMORY));
	} else {
		array = s->area + e.offset;
	}
	pthread_mutex_unlock(&s->lock);
	return array;
}

void libra_free(struct libra_session *s, void *array)
{
	if (!array || session_check(s, __func__))
		return;
	pthread_mutex_lock(&s->lock);
	if (!buffers_return(&s->buffers, (uint64_t)((uintptr_t)array - (uintptr_t)s->area)))
		error_set(LIBRA_USAGE, "%s: %p is not from libra_alloc of this session", __func__, array);
	pthread_mutex_unlock(&s->lock);
}
