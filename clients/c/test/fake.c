/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fake.h"

static char dir[64];

static void *run(void *f)
{
	sigset_t all;

	/* Only the thread that calls the library gets the test's signals. */
	CHECK(sigfillset(&all) == 0 && pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
	((struct fake *)f)->run(f);
	fake_hang_up(f);
	return NULL;
}

void fake_start(struct fake *f, void (*function)(struct fake *), const void *argument)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	memset(f, 0, sizeof *f);
	f->conn = f->memfd = -1;
	f->run = function;
	f->argument = argument;
	strcpy(dir, "/tmp/libra-fake-XXXXXX");
	CHECK(mkdtemp(dir));
	snprintf(f->path, sizeof f->path, "%s/agent.sock", dir);
	memcpy(a.sun_path, f->path, sizeof a.sun_path);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(f->listener >= 0 && bind(f->listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(f->listener, 8) == 0);
	CHECK(pthread_create(&f->thread, NULL, run, f) == 0);
}

void fake_stop(struct fake *f)
{
	CHECK(pthread_join(f->thread, NULL) == 0);
	close(f->listener);
	unlink(f->path);
	rmdir(dir);
}

void fake_hang_up(struct fake *f)
{
	if (f->conn >= 0)
		close(f->conn);
	if (f->memfd >= 0)
		close(f->memfd);
	if (f->memory)
		munmap(f->memory, 0x4000 + BUFFERS);
	f->conn = f->memfd = -1;
	f->memory = NULL;
}

void fake_accept(struct fake *f)
{
	f->conn = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(f->conn >= 0);
	CHECK(recv(f->conn, &f->hello, sizeof f->hello, 0) == sizeof f->hello);
	CHECK(f->hello.magic == MAGIC && f->hello.oldest == 1 && f->hello.newest == 1 &&
	      f->hello.features == f->hello.owner && f->hello.owner <= 1);
	for (size_t i = 0; i < sizeof f->hello.zero; i++)
		CHECK(f->hello.zero[i] == 0);
}

struct options_of_fake fake_defaults(void)
{
	return (struct options_of_fake){
		.welcome = {.magic = MAGIC, .version = 1, .job = 7, .mode = 1, .features = FEATURE_HARVEST, .dim = DIM, .exponent = -46, .hot_rows = 9,
			    .client = 4, .agent_pid = 77, .instance = 5, .next_step = 20, .memory_bytes = 0x4000 + BUFFERS,
			    .sq_offset = 0x1000, .cq_offset = 0x2000, .buffer_offset = 0x4000, .buffer_bytes = BUFFERS,
			    .entries = ENTRIES, .prepared_bytes = 1000},
		.fds = 1, .length = sizeof(struct welcome), .seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
		.bytes = 0x4000 + BUFFERS, .magic = MEMORY_MAGIC,
	};
}

void fake_welcome_with(struct fake *f, struct options_of_fake o)
{
	FILE *file = o.file ? tmpfile() : NULL;
	f->memfd = file ? dup(fileno(file)) : memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (file)
		fclose(file);
	CHECK(f->memfd >= 0 && ftruncate(f->memfd, (off_t)o.bytes) == 0);
	if (o.bytes == 0x4000 + BUFFERS) {
		f->memory = mmap(NULL, o.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->memfd, 0);
		CHECK(f->memory != MAP_FAILED);
		f->header = (struct header *)f->memory;
		f->header->magic = o.magic;
		f->sq = (struct entry *)(f->memory + 0x1000);
		f->cq = (struct completion *)(f->memory + 0x2000);
		f->area = f->memory + 0x4000;
	}
	CHECK(o.file || !o.seals || fcntl(f->memfd, F_ADD_SEALS, o.seals) == 0);

	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control;
	memset(&control, 0, sizeof control);
	struct iovec v = {&o.welcome, o.length};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	if (o.fds) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE((size_t)o.fds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)o.fds * sizeof(int));
		for (int i = 0; i < o.fds; i++)
			memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &f->memfd, sizeof(int));
	}
	CHECK(sendmsg(f->conn, &m, MSG_NOSIGNAL) == (ssize_t)o.length);
}

void fake_welcome(struct fake *f)
{
	fake_accept(f);
	fake_welcome_with(f, fake_defaults());
}

void fake_wake(struct fake *f)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_exchange(&f->header->client_sleeps, 0) == 1)
		send(f->conn, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool fake_next(struct fake *f, struct entry *e)
{
	struct pollfd p = {.fd = f->conn, .events = POLLIN};
	char byte;

	while (atomic_load(&f->header->sq_tail) == f->read) {
		atomic_store(&f->header->agent_sleeps, 1);
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load(&f->header->sq_tail) != f->read)
			break;
		CHECK(poll(&p, 1, -1) == 1);
		if (recv(f->conn, &byte, 1, MSG_DONTWAIT) <= 0)
			return false;
	}
	atomic_store(&f->header->agent_sleeps, 0);
	CHECK(atomic_load(&f->header->sq_tail) - atomic_load(&f->header->cq_head) <= ENTRIES);
	*e = f->sq[f->read % ENTRIES];
	return true;
}

void fake_read(struct fake *f)
{
	atomic_store(&f->header->sq_head, ++f->read);
}

void fake_complete(struct fake *f, struct completion c)
{
	f->cq[f->answered % ENTRIES] = c;
	atomic_store(&f->header->cq_tail, ++f->answered);
	fake_wake(f);
}

struct completion fake_answer(const struct entry *e, uint32_t status)
{
	return (struct completion){.tag = e->tag, .op = e->op, .status = status};
}

/*
 * fake_serve makes the agent's checks of an entry. Rows of key k are k, k+1, ...; sums are twice
 * the gradients; the handle of a prepared batch is its number of keys.
 */
void fake_serve(struct fake *f)
{
	struct entry e;

	while (fake_next(f, &e)) {
		bool numbered = e.op == REDUCE || e.op == HARVEST;
		bool rows = (e.op >= PUSH && e.op <= PUSH_SUMS) || e.op == SUMS || numbered;
		uint64_t row_bytes = rows ? (uint64_t)e.n * DIM * 4 : e.op == STATS ? 128 : 0;
		uint64_t key_bytes = e.batch ? 0 : (uint64_t)e.n * 8;
		CHECK(e.op >= PUSH && e.op <= HARVEST && !e.zero1[0] && !e.zero1[1] && !e.zero1[2] && !e.zero2);
		CHECK(e.dim == (rows ? DIM : 0));
		CHECK(e.keys % 8 == 0 && e.keys <= BUFFERS && BUFFERS - e.keys >= key_bytes && (key_bytes || !e.keys));
		CHECK(e.values % 8 == 0 && e.values <= BUFFERS && BUFFERS - e.values >= row_bytes && (row_bytes || !e.values));
		CHECK(e.sums % 8 == 0 && e.sums <= BUFFERS && BUFFERS - e.sums >= row_bytes && (e.op == PUSH_SUMS || !e.sums));
		CHECK(e.op == BARRIER || e.op == REDUCE || e.op == SUMS || e.step == 0 || (e.op == HARVEST && e.step == NOW));

		uint64_t *keys = (uint64_t *)(f->area + e.keys);
		float *values = (float *)(f->area + e.values), *sums = (float *)(f->area + e.sums);
		struct completion c = fake_answer(&e, 0);
		for (uint32_t i = 0; i < e.n * DIM && rows; i++) {
			if (e.op == PULL)
				values[i] = (float)(e.batch ? i / DIM : keys[i / DIM]) + (float)(i % DIM);
			if (e.op == PUSH_SUMS && i % DIM == 0) /* the others are cold rows */
				sums[i] = values[i] * 2;
			if (e.op == PUSH && values[i] != values[i] && !c.status) {
				c.status = LIBRA_NOT_FINITE;
				c.detail = i;
				c.key = keys[i / DIM];
				c.key_known = 1;
			}
		}
		uint64_t first = e.op == SUMS ? e.step : 0;
		uint32_t n = numbered && e.n > 700 ? 700 : e.n;
		for (uint32_t i = 0; (e.op == SUMS || numbered) && i < n; i++)
			keys[i] = 1000 + first + i;
		if (e.op == SUMS || numbered)
			for (uint32_t i = 0; i < n * DIM; i++)
				values[i] = (float)(first * DIM + i);
		if (e.op == PREPARE || numbered)
			c.detail = numbered ? 700 : e.n;
		if (e.op == HARVEST)
			keys[0] += n ? e.step : 0; /* tells a harvest that was wanted at once */
		for (uint64_t i = 0; e.op == STATS && i < 16; i++)
			((uint64_t *)values)[i] = i;
		fake_read(f);
		fake_complete(f, c);
	}
}

struct libra_options options_for(const struct fake *f)
{
	struct libra_options o = LIBRA_OPTIONS;

	o.socket = f->path;
	o.job = JOB;
	return o;
}

struct libra_session *open_fake(const struct fake *f)
{
	struct libra_options o = options_for(f);
	struct libra_session *s;

	CHECK(libra_open(&s, &o) == LIBRA_OK);
	return s;
}

int descriptors(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

int main(void)
{
	test_buffers();
	test_open();
	test_requests();
	test_hostile();
	test_life();
	test_waits();
	return 0;
}
