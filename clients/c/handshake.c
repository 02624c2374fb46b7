/* SPDX-License-Identifier: Apache-2.0 */
/* libra_open: HELLO, WELCOME or REFUSED, and the shared memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define OPEN_MS 5000
#define MAX_FDS 8 /* that are received, to be closed */

static int text_option(char *to, size_t room, const char *from, const char *name)
{
	size_t n = from ? strlen(from) : 0;

	if (n >= room)
		return error_set(LIBRA_USAGE, "libra_open: options.%s has %zu bytes, more than %zu", name, n, room - 1);
	memcpy(to, from ? from : "", n);
	return LIBRA_OK;
}

/* read_options copies the caller's options, whose version may differ, to those of this version. */
static int read_options(struct libra_options *o, const struct libra_options *from)
{
	*o = (struct libra_options)LIBRA_OPTIONS;
	if (!from || from->size < offsetof(struct libra_options, hot_set))
		return error_set(LIBRA_USAGE, "libra_open: options is NULL or does not begin with LIBRA_OPTIONS");
	memcpy(o, from, from->size < sizeof *o ? from->size : sizeof *o);
	for (size_t i = sizeof *o; i < from->size; i++)
		if (((const unsigned char *)from)[i])
			return error_set(LIBRA_USAGE, "libra_open: options has a field that version %s of the library does not "
					 "know: update the library", LIBRA_VERSION);
	if (!o->job || !*o->job)
		return error_set(LIBRA_USAGE, "libra_open: options.job is missing: give the name of a job in the agent's "
				 "configuration");
	if (o->entries && (o->entries < MIN_ENTRIES || o->entries > MAX_ENTRIES || (o->entries & (o->entries - 1))))
		return error_set(LIBRA_USAGE, "libra_open: options.entries is %u: use a power of two from %u to %u, or 0",
				 o->entries, MIN_ENTRIES, MAX_ENTRIES);
	if ((o->owner != 0 && o->owner != 1) || o->zero)
		return error_set(LIBRA_USAGE, "libra_open: options.owner is %d and options.zero %d: use 0 or 1, and 0", o->owner, o->zero);
	if (o->open_ms < 0 || o->room_ms < 0)
		return error_set(LIBRA_USAGE, "libra_open: options.open_ms or room_ms is negative");
	return LIBRA_OK;
}

/* join connects to the agent. Sending and receiving on the socket time out after open_ms. */
static int join(struct libra_session *s, int32_t open_ms)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct stat file;
	struct timeval limit = {.tv_sec = open_ms / 1000, .tv_usec = open_ms % 1000 * 1000};

	memcpy(a.sun_path, s->path, sizeof a.sun_path);
	s->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s->socket < 0)
		return error_set(LIBRA_SYSTEM, "libra_open: socket: %m");
	if (setsockopt(s->socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) ||
	    setsockopt(s->socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit))
		return error_set(LIBRA_SYSTEM, "libra_open: setsockopt: %m");
	while (connect(s->socket, (struct sockaddr *)&a, sizeof a)) {
		switch (errno) {
		case EINTR:
			continue;
		case ENOENT:
			return error_set(LIBRA_NO_AGENT, "libra_open: there is no %s: start libra agent on this host, or name its "
					 "socket in options.socket or LIBRA_AGENT", s->path);
		case ECONNREFUSED:
			if (!stat(s->path, &file) && !S_ISSOCK(file.st_mode))
				return error_set(LIBRA_NO_AGENT, "libra_open: %s is no socket: name that of libra agent in options.socket or "
						 "LIBRA_AGENT", s->path);
			return error_set(LIBRA_NO_AGENT, "libra_open: no agent listens at %s any more: start libra agent", s->path);
		case EACCES:
		case EPERM:
			return error_set(LIBRA_NO_AGENT, "libra_open: user %u may not open %s: add it to the socket's group",
					 geteuid(), s->path);
		case EAGAIN:
			return error_set(LIBRA_TIMEOUT, "libra_open: the agent at %s takes no connection within %d ms", s->path,
					 open_ms);
		default:
			return error_set(LIBRA_NO_AGENT, "libra_open: %s: %m", s->path);
		}
	}
	return LIBRA_OK;
}

/* exchange sends HELLO, receives the answer and descriptors, and returns the answer's length. */
static int exchange(struct libra_session *s, const struct hello *h, int32_t open_ms, void *answer, size_t room,
		    size_t *length, int fds[MAX_FDS], size_t *nfds)
{
	ssize_t n;

	*nfds = 0;
	while ((n = send(s->socket, h, sizeof *h, MSG_NOSIGNAL)) < 0 && errno == EINTR)
		;
	/* An agent that refuses before it reads closes the socket, but its answer may have
	 * arrived. */
	if (n < 0 && errno != EPIPE && errno != ECONNRESET)
		return error_set(errno == EAGAIN ? LIBRA_TIMEOUT : LIBRA_SYSTEM, "libra_open: the agent at %s takes no HELLO: %m",
				 s->path);

	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} control;
	struct iovec v = {answer, room};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	int64_t deadline = now_ns(CLOCK_MONOTONIC) + open_ms * (int64_t)1000000;
	bool reset = false; /* the reset arrives before the answer if the agent has not read HELLO */
	while ((n = recvmsg(s->socket, &m, MSG_CMSG_CLOEXEC)) < 0 &&
	       ((errno == EINTR && now_ns(CLOCK_MONOTONIC) < deadline) || (errno == ECONNRESET && !reset)))
		reset = errno == ECONNRESET;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return error_set(LIBRA_TIMEOUT, "libra_open: the agent at %s does not answer within %d ms", s->path, open_ms);
	if (n < 0 && errno != ECONNRESET)
		return error_set(LIBRA_SYSTEM, "libra_open: recvmsg: %m");
	if (n <= 0)
		return error_set(LIBRA_AGENT_DIED, "libra_open: the agent at %s closed the connection without an answer", s->path);
	*length = (size_t)n;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t more = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < more && *nfds < MAX_FDS; i++)
			memcpy(fds + (*nfds)++, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
	}
	return LIBRA_OK;
}

static int bad(const struct libra_session *s, const char *what)
{
	return error_set(LIBRA_PROTOCOL, "libra_open: the agent at %s broke the protocol: %s", s->path, what);
}

static int refuse(const struct libra_session *s, const struct refused *r)
{
	char text[sizeof r->text];

	clean_text(text, sizeof text, r->text, sizeof r->text);
	if (r->code >= LIBRA_NO_AGENT)
		return bad(s, "a code of REFUSED is not one of an agent's");
	if (r->code == LIBRA_VERSIONS && (r->oldest > PROTOCOL_VERSION || r->newest < PROTOCOL_VERSION))
		return error_set(LIBRA_VERSIONS, "libra_open: the agent at %.107s speaks versions %u to %u of the protocol, this "
				 "library, of Libra " LIBRA_VERSION ", version %u: upgrade the %s", s->path, r->oldest, r->newest,
				 PROTOCOL_VERSION, r->oldest > PROTOCOL_VERSION ?
				 "library, or the Python package that has it, to the agent's release" :
				 "agent to the library's release, and restart it");
	return error_set((int)r->code, "libra_open: the agent at %.107s refuses job %.63s: %.440s", s->path, s->job,
			 *text ? text : libra_code_text((int)r->code));
}

static bool inside(uint64_t offset, uint64_t bytes, uint64_t all)
{
	return offset % PAGE == 0 && offset >= PAGE && offset <= all && all - offset >= bytes;
}

static bool apart(uint64_t a, uint64_t abytes, uint64_t b, uint64_t bbytes)
{
	return a + abytes <= b || b + bbytes <= a;
}

/* map verifies the size and seals of the agent's memory: a truncated file would kill the process
 * with SIGBUS. */
static int map(struct libra_session *s, const struct welcome *w, int memfd)
{
	uint64_t ring = (uint64_t)w->entries * sizeof(struct entry);
	struct stat st;
	int seals = fcntl(memfd, F_GET_SEALS);

	if (w->entries < MIN_ENTRIES || w->entries > MAX_ENTRIES || (w->entries & (w->entries - 1)))
		return bad(s, "the number of entries is not a power of two from 8 to 65536");
	if (w->memory_bytes > INT64_MAX || !inside(w->sq_offset, ring, w->memory_bytes) ||
	    !inside(w->cq_offset, ring, w->memory_bytes) || !inside(w->buffer_offset, w->buffer_bytes, w->memory_bytes) ||
	    !apart(w->sq_offset, ring, w->cq_offset, ring) ||
	    !apart(w->sq_offset, ring, w->buffer_offset, w->buffer_bytes) ||
	    !apart(w->cq_offset, ring, w->buffer_offset, w->buffer_bytes))
		return bad(s, "rings and buffers do not fit the memory");
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return bad(s, "the memory is not sealed against truncation");
	if (fstat(memfd, &st) || (uint64_t)st.st_size < w->memory_bytes)
		return bad(s, "the memory is smaller than announced");
	void *m = mmap(NULL, w->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (m == MAP_FAILED)
		return error_set(LIBRA_NO_MEMORY, "libra_open: mmap of %llu bytes: %m", (unsigned long long)w->memory_bytes);
	s->header = m;
	s->memory_bytes = w->memory_bytes;
	/* A child that wrote here would corrupt the parent's requests, and a surviving child would
	 * keep the memory in use. */
	if (madvise(m, w->memory_bytes, MADV_DONTFORK))
		return error_set(LIBRA_SYSTEM, "libra_open: madvise: %m");
	if (s->header->magic != MEMORY_MAGIC)
		return bad(s, "the memory begins with another magic number");
	s->sq = (struct entry *)((char *)m + w->sq_offset);
	s->cq = (struct completion *)((char *)m + w->cq_offset);
	s->area = (uint8_t *)m + w->buffer_offset;
	return LIBRA_OK;
}

static int welcome(struct libra_session *s, const struct libra_options *o, const struct welcome *w, int memfd)
{
	if (w->version != PROTOCOL_VERSION)
		return bad(s, "WELCOME has a version that was not offered");
	if (o->owner && !(w->features & FEATURE_HARVEST))
		return bad(s, "WELCOME lacks a feature that was required");
	if (w->dim == 0 || (o->dim && w->dim != o->dim))
		return bad(s, "WELCOME has another number of floats in a row");
	if (o->hot_set && memcmp(w->hot_set, o->hot_set, sizeof w->hot_set))
		return bad(s, "WELCOME has another hot set");
	int code = map(s, w, memfd);
	if (code)
		return code;

	s->info = (struct libra_info){
		.dim = w->dim, .mode = w->mode, .arithmetic = w->arithmetic, .exponent = w->exponent,
		.hot_rows = w->hot_rows, .job = w->job, .client = w->client, .agent_pid = w->agent_pid,
		.entries = w->entries, .buffer_bytes = w->buffer_bytes, .prepared_bytes = w->prepared_bytes,
		.instance = w->instance,
	};
	memcpy(s->info.hot_set, w->hot_set, sizeof w->hot_set);
	s->next_step = w->next_step;
	s->owner = o->owner != 0;
	s->requests_of = calloc(w->entries, sizeof *s->requests_of);
	if (!s->requests_of || !buffers_init(&s->buffers, w->buffer_bytes))
		return error_set(LIBRA_NO_MEMORY, "libra_open: %s", libra_code_text(LIBRA_NO_MEMORY));
	return LIBRA_OK;
}

static int handshake(struct libra_session *s, const struct libra_options *o)
{
	int32_t open_ms = o->open_ms ? o->open_ms : OPEN_MS;
	struct hello h = {
		.magic = MAGIC, .oldest = PROTOCOL_VERSION, .newest = PROTOCOL_VERSION, .entries = o->entries,
		.dim = o->dim, .buffer_bytes = o->buffer_bytes, .parties = o->parties,
		.owner = o->owner != 0, .features = o->owner ? FEATURE_HARVEST : 0,
	};
	const char *path = o->socket ? o->socket : secure_getenv("LIBRA_AGENT");
	int code;

	if (!path || !*path)
		path = DEFAULT_SOCKET;
	if ((code = text_option(s->path, sizeof s->path, path, "socket")) ||
	    (code = text_option(h.job, sizeof h.job, o->job, "job")) ||
	    (code = text_option(h.client, sizeof h.client, o->client, "client")))
		return code;
	memcpy(s->job, h.job, sizeof s->job);
	if (o->hot_set)
		memcpy(h.hot_set, o->hot_set, sizeof h.hot_set);

	union {
		struct welcome welcome;
		struct refused refused;
		char bytes[sizeof(struct refused) + 1];
	} answer;
	int fds[MAX_FDS];
	size_t nfds, n = 0;
	if ((code = join(s, open_ms)) ||
	    (code = exchange(s, &h, open_ms, &answer, sizeof answer, &n, fds, &nfds)))
		return code;
	if (n == sizeof answer.refused && answer.refused.magic == MAGIC && answer.refused.code) {
		code = refuse(s, &answer.refused);
	} else if (n == sizeof answer.welcome && answer.welcome.magic == MAGIC && !answer.welcome.code && nfds == 1) {
		code = welcome(s, o, &answer.welcome, fds[0]);
	} else {
		code = bad(s, "its answer is neither WELCOME nor REFUSED");
	}
	for (size_t i = 0; i < nfds; i++) /* the mapping lasts without its descriptor */
		close(fds[i]);
	return code;
}

int libra_open(struct libra_session **session, const struct libra_options *options)
{
	struct libra_options o;
	pthread_condattr_t attr;
	int code;

	if (!session)
		return error_set(LIBRA_USAGE, "%s: the place for the session is NULL", __func__);
	*session = NULL;
	if ((code = read_options(&o, options)))
		return code;

	struct libra_session *s = calloc(1, sizeof *s);
	if (!s)
		return error_set(LIBRA_NO_MEMORY, "%s: %s", __func__, libra_code_text(LIBRA_NO_MEMORY));
	s->socket = s->epoll = s->own_event = -1;
	s->vacant = NONE;
	s->look_ns = (o.spin_us ? o.spin_us : LOOK_US) * (int64_t)1000;
	s->room_ms = o.room_ms;
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->changed, &attr);
	pthread_condattr_destroy(&attr);

	/* Enlisted before the descriptor exists, so that a fork in another thread finds it. */
	if ((code = session_enlist(s)) || (code = handshake(s, &o))) {
		session_free(s);
		return code;
	}
	*session = s;
	return LIBRA_OK;
}
