/* SPDX-License-Identifier: Apache-2.0 */
/* Handshakes that fail, and one that succeeds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "fake.h"

static void agent_refuses(struct fake *f)
{
	fake_accept(f);
	CHECK(send(f->conn, f->argument, sizeof(struct refused), MSG_NOSIGNAL) == sizeof(struct refused));
}

static void refused_by(uint16_t version, uint32_t code, const char *text, int want, const char *want_text)
{
	struct refused r = {.magic = MAGIC, .code = code, .oldest = version, .newest = version};
	struct fake f;
	struct libra_session *s = (struct libra_session *)&f;

	memcpy(r.text, text, strlen(text) < sizeof r.text ? strlen(text) : sizeof r.text);
	fake_start(&f, agent_refuses, &r);
	struct libra_options o = options_for(&f);
	CHECK(libra_open(&s, &o) == want);
	CHECK(!s && libra_last_error()->code == want && strstr(libra_last_error()->text, want_text));
	fake_stop(&f);
}

static void refused(uint32_t code, const char *text, int want, const char *want_text)
{
	refused_by(PROTOCOL_VERSION, code, text, want, want_text);
}

static void agent_refuses_unread(struct fake *f)
{
	struct refused r = {.magic = MAGIC, .code = LIBRA_CLIENTS, .text = "too many of you"};
	struct pollfd p = {.events = POLLIN};

	f->conn = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
	p.fd = f->conn;
	CHECK(poll(&p, 1, -1) == 1 && send(f->conn, &r, sizeof r, MSG_NOSIGNAL) == sizeof r);
}

/* An agent that does not read HELLO resets the connection after its answer. */
static void refused_unread(void)
{
	struct fake f;
	struct libra_session *s;

	fake_start(&f, agent_refuses_unread, NULL);
	struct libra_options o = options_for(&f);
	CHECK(libra_open(&s, &o) == LIBRA_CLIENTS && strstr(libra_last_error()->text, "too many of you"));
	fake_stop(&f);
}

static void agent_welcomes_badly(struct fake *f)
{
	fake_accept(f);
	if (((const struct options_of_fake *)f->argument)->length)
		fake_welcome_with(f, *(const struct options_of_fake *)f->argument);
}

static void badly(struct options_of_fake w, int want)
{
	struct fake f;
	struct libra_session *s;
	uint8_t hot_set[32] = {0};
	int before = descriptors();

	fake_start(&f, agent_welcomes_badly, &w);
	struct libra_options o = options_for(&f);
	o.dim = w.welcome.dim ? DIM : 0;
	o.hot_set = hot_set;
	CHECK(libra_open(&s, &o) == want);
	fake_stop(&f);
	CHECK(descriptors() == before);
}

#define BADLY(change)                                   \
	do {                                            \
		struct options_of_fake w = fake_defaults(); \
		change;                                 \
		badly(w, LIBRA_PROTOCOL);               \
	} while (0)

/* An owner needs the feature, which an agent that does not know it would have refused. */
static void opens_without_harvests(void)
{
	struct fake f;
	struct libra_session *s;
	struct options_of_fake w = fake_defaults();

	w.welcome.features = 0;
	fake_start(&f, agent_welcomes_badly, &w);
	struct libra_options o = options_for(&f);
	o.owner = 1;
	CHECK(libra_open(&s, &o) == LIBRA_PROTOCOL && strstr(libra_last_error()->text, "lacks a feature"));
	fake_stop(&f);
}

static void agent_says_nothing(struct fake *f)
{
	char byte;

	fake_accept(f);
	CHECK(recv(f->conn, &byte, 1, 0) == 0); /* until the client gives up */
}

static _Atomic int alarms; /* another thread reads it */

static void on_alarm(int signal)
{
	(void)signal;
	alarms++;
}

static void agent_takes_its_time(struct fake *f)
{
	fake_accept(f);
	for (int before = alarms; alarms < before + 20;)
		sched_yield();
	fake_welcome_with(f, fake_defaults());
	fake_serve(f);
}

/* Signals, whose handlers do not restart system calls, neither end a handshake nor make it longer. */
static void opens_among_signals(void)
{
	struct sigaction a = {.sa_handler = on_alarm}, old;
	struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	struct fake f;
	struct libra_session *s;

	CHECK(sigaction(SIGALRM, &a, &old) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
	fake_start(&f, agent_says_nothing, NULL);
	struct libra_options o = options_for(&f);
	o.open_ms = 300; /* within which a signal comes on a busy machine, too */
	CHECK(libra_open(&s, &o) == LIBRA_TIMEOUT && strstr(libra_last_error()->text, "does not answer within 300 ms"));
	fake_stop(&f);
	fake_start(&f, agent_takes_its_time, NULL);
	s = open_fake(&f);
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && sigaction(SIGALRM, &old, NULL) == 0);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
}

static void agent_takes_no_connection(struct fake *f)
{
	char byte;

	CHECK(read(*(const int *)f->argument, &byte, 1) == 0);
}

static void opens_in_a_crowd(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct fake f;
	struct libra_session *s;
	int until[2], crowd[64], n = 0, code;

	CHECK(pipe(until) == 0);
	fake_start(&f, agent_takes_no_connection, until);
	memcpy(a.sun_path, f.path, sizeof a.sun_path);
	do {
		CHECK(n < 64 && (crowd[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) >= 0);
		code = connect(crowd[n++], (struct sockaddr *)&a, sizeof a);
	} while (code == 0);
	struct libra_options o = options_for(&f);
	o.open_ms = 1;
	CHECK(libra_open(&s, &o) == LIBRA_TIMEOUT && strstr(libra_last_error()->text, "takes no connection within 1 ms"));
	while (n > 0)
		close(crowd[--n]);
	close(until[1]);
	fake_stop(&f);
	close(until[0]);
}

static void usage(struct libra_options o, int want, const char *text)
{
	struct libra_session *s;

	CHECK(libra_open(&s, &o) == want && !s && strstr(libra_last_error()->text, text));
}

static void options(void)
{
	struct {
		struct libra_options o;
		int newer;
	} newer = {.o = LIBRA_OPTIONS};
	struct libra_options o = LIBRA_OPTIONS;
	struct libra_session *s;
	static const uint32_t entries[] = {4, 12, 1 << 17};

	CHECK(libra_open(NULL, &o) == LIBRA_USAGE);
	CHECK(libra_open(&s, NULL) == LIBRA_USAGE);
	usage(o, LIBRA_USAGE, "options.job is missing");
	o.job = "123456789012345678901234567890123456789012345678901234567890abcd";
	usage(o, LIBRA_USAGE, "options.job has 64 bytes, more than 63");
	o.job = JOB;
	o.client = "123456789012345678901234567890ab";
	usage(o, LIBRA_USAGE, "options.client has 32 bytes");
	o.client = NULL;
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		char text[64];
		snprintf(text, sizeof text, "options.entries is %u: use a power of two from 8 to 65536", entries[i]);
		o.entries = entries[i];
		usage(o, LIBRA_USAGE, text);
	}
	o.entries = 0;
	o.room_ms = -1;
	usage(o, LIBRA_USAGE, "negative");
	o.room_ms = 0;
	o.open_ms = -1;
	usage(o, LIBRA_USAGE, "negative");
	o.open_ms = 0;
	o.owner = 2;
	usage(o, LIBRA_USAGE, "options.owner is 2 and options.zero 0: use 0 or 1, and 0");
	o.owner = 0;
	o.zero = 1;
	usage(o, LIBRA_USAGE, "options.owner is 0 and options.zero 1");
	o.zero = 0;
	o.size = offsetof(struct libra_options, hot_set) - 1;
	usage(o, LIBRA_USAGE, "does not begin with LIBRA_OPTIONS");
	o.size = sizeof o;
	o.socket = "/nowhere/agent.sock";
	usage(o, LIBRA_NO_AGENT, "there is no /nowhere/agent.sock: start libra agent");
	o.socket = "/dev/null";
	usage(o, LIBRA_NO_AGENT, "/dev/null is no socket: name that of libra agent in options.socket or LIBRA_AGENT");
	o.socket = "/nowhere/agent.sock";
	o.socket = NULL;
	CHECK(setenv("LIBRA_AGENT", "/nowhere/else", 1) == 0);
	usage(o, LIBRA_NO_AGENT, "there is no /nowhere/else");
	CHECK(setenv("LIBRA_AGENT", "", 1) == 0);
	o.job = "no agent serves a job of this name";
	CHECK(libra_open(&s, &o) != LIBRA_OK && strstr(libra_last_error()->text, DEFAULT_SOCKET));
	CHECK(unsetenv("LIBRA_AGENT") == 0);

	newer.o.size = sizeof newer;
	newer.o.job = JOB;
	newer.o.socket = "/nowhere";
	CHECK(libra_open(&s, &newer.o) == LIBRA_NO_AGENT);
	newer.newer = 1;
	CHECK(libra_open(&s, &newer.o) == LIBRA_USAGE && strstr(libra_last_error()->text, "update the library"));
}

static void agent_compares_hello(struct fake *f)
{
	fake_accept(f);
	CHECK(strcmp(f->hello.job, JOB) == 0 && strcmp(f->hello.client, "me") == 0);
	CHECK(f->hello.entries == 64 && f->hello.dim == DIM && f->hello.buffer_bytes == 1234 && f->hello.parties == 2);
	CHECK(f->hello.hot_set[31] == 9);
	struct options_of_fake o = fake_defaults();
	memcpy(o.welcome.hot_set, f->hello.hot_set, 32);
	fake_welcome_with(f, o);
	fake_serve(f);
}

static void opens(void)
{
	struct fake f;
	struct libra_session *s;
	uint8_t hot_set[32] = {[31] = 9};
	int before = descriptors();

	fake_start(&f, agent_compares_hello, NULL);
	struct libra_options o = options_for(&f);
	o.client = "me";
	o.entries = 64;
	o.dim = DIM;
	o.buffer_bytes = 1234;
	o.parties = 2;
	o.hot_set = hot_set;
	CHECK(libra_open(&s, &o) == LIBRA_OK);
	const struct libra_info *i = libra_info(s);
	CHECK(i->dim == DIM && i->mode == LIBRA_FETCHADD && i->arithmetic == LIBRA_EXACT && i->exponent == -46);
	CHECK(i->hot_rows == 9 && i->job == 7 && i->client == 4 && i->agent_pid == 77 && i->entries == ENTRIES);
	CHECK(i->buffer_bytes == BUFFERS && i->prepared_bytes == 1000 && i->instance == 5 && i->hot_set[31] == 9);
	CHECK(libra_close(s) == LIBRA_OK);
	fake_stop(&f);
	CHECK(descriptors() == before);

	/* The socket exists, but no process listens. */
	fake_start(&f, agent_says_nothing, NULL);
	o = options_for(&f);
	o.open_ms = 1;
	CHECK(libra_open(&s, &o) == LIBRA_TIMEOUT && strstr(libra_last_error()->text, "does not answer within 1 ms"));
	shutdown(f.listener, SHUT_RDWR);
	CHECK(libra_open(&s, &o) == LIBRA_NO_AGENT && strstr(libra_last_error()->text, "no agent listens"));
	fake_stop(&f);
}

void test_open(void)
{
	struct options_of_fake none = {.length = 0};
	char endless[496];

	refused(LIBRA_NO_JOB, "there are ads and clicks", LIBRA_NO_JOB, "refuses job clicks: there are ads and clicks");
	refused(LIBRA_NOT_ALLOWED, "", LIBRA_NOT_ALLOWED, "add the user or a group of it to the job");
	refused(LIBRA_CLIENTS, "a\x1b[2Jb\x7f", LIBRA_CLIENTS, "a?[2Jb?");
	refused(99, "unheard of", 99, "unheard of");
	refused_by(PROTOCOL_VERSION + 1, LIBRA_VERSIONS, "", LIBRA_VERSIONS, "upgrade the library, or the Python package");
	refused_by(PROTOCOL_VERSION - 1, LIBRA_VERSIONS, "", LIBRA_VERSIONS, "upgrade the agent to the library's release");
	refused(LIBRA_VERSIONS, "ours", LIBRA_VERSIONS, "refuses job clicks: ours"); /* although they have one in common */
	refused(LIBRA_FORKED, "x", LIBRA_PROTOCOL, "not one of an agent's");
	memset(endless, 'x', sizeof endless);
	endless[sizeof endless - 1] = 'x';
	char text[sizeof endless + 1];
	snprintf(text, sizeof text, "%.496s", endless);
	refused(LIBRA_NO_JOB, text, LIBRA_NO_JOB, "xxx");

	refused_unread();

	BADLY(w.welcome.version = 2);
	BADLY(w.welcome.magic = 1);
	BADLY(w.welcome.code = 4);
	BADLY(w.welcome.dim = DIM + 1);
	BADLY(w.welcome.dim = 0);
	BADLY(w.welcome.hot_set[3] = 1);
	BADLY(w.welcome.entries = 7);
	BADLY(w.welcome.entries = 24);
	BADLY(w.welcome.entries = 1 << 17);
	BADLY(w.welcome.memory_bytes *= 2);
	BADLY(w.welcome.memory_bytes = UINT64_MAX);
	BADLY(w.welcome.sq_offset = 0);
	BADLY(w.welcome.sq_offset += 8);
	BADLY(w.welcome.cq_offset = w.welcome.sq_offset);
	BADLY(w.welcome.cq_offset = UINT64_MAX & ~0xfffull);
	BADLY(w.welcome.buffer_offset = 0x2000);
	BADLY(w.welcome.buffer_offset = w.welcome.buffer_bytes = 0x1000);
	BADLY(w.welcome.buffer_bytes++);
	BADLY(w.welcome.buffer_bytes = UINT64_MAX - 100);
	BADLY(w.magic++);
	BADLY(w.seals = F_SEAL_GROW);
	BADLY(w.file = true);
	BADLY(w.bytes = 100);
	BADLY(w.fds = 0);
	BADLY(w.fds = 2);
	BADLY(w.length--);
	badly(none, LIBRA_AGENT_DIED); /* closed without an answer */

	options();
	opens_without_harvests();
	opens();
	opens_among_signals();
	opens_in_a_crowd();
}
