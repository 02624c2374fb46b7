/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers and workers on the fake of ps-lite, all in this process, with sums through a real agent.
 * Workers push and pull at random: a pull has at least what its worker had acknowledged, and in the
 * end the stores have the exact sums.
 *
 * `real HOTSET PUSHES`, with the agent's socket in LIBRA_AGENT, prints how many harvests the
 * handles had. `real open HOTSET RANK` opens the van of one server, and prints "open" or the error.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "host.h"

#define SERVERS 2
#define WORKERS 3
#define KEYS    900 /* of each server: 0, 1, ... */
#define EACH    24  /* keys of a push */
#define DIM     2

static struct node servers[SERVERS], workers[WORKERS];
static int pushes;

/* What a worker knows. */
struct sight {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	double acknowledged[SERVERS][KEYS]; /* first values of its pushes */
	bool done;
	struct msg answer;
};

static struct sight sights[WORKERS];

/* serve is a server's handle: it adds, and answers at once. */
static void serve(struct node *n, struct msg *m)
{
	float values[EACH * DIM];

	n->harvests += m->m.sender == n->id;
	for (size_t i = 0; m->m.push && i < m->m.n; i++)
		for (size_t k = 0; k < DIM; k++)
			n->store[m->m.keys[i] * DIM + k] += (double)m->m.values[i * DIM + k];
	struct van_message r = {.recver = m->m.sender, .customer = m->m.customer, .timestamp = m->m.timestamp,
				.push = m->m.push, .pull = m->m.pull};
	if (m->m.pull) {
		for (size_t i = 0; i < m->m.n * DIM; i++)
			values[i] = (float)n->store[m->m.keys[i / DIM] * DIM + i % DIM];
		r.keys = m->m.keys;
		r.n = m->m.n;
		r.is_float = true;
		r.values = values;
		r.floats = m->m.n * DIM;
	}
	node_send(n, &r);
}

/* see is called with what a worker gets; only one request of each is on the way. */
static void see(struct node *n, struct msg *m)
{
	struct sight *s = n->argument;

	pthread_mutex_lock(&s->lock);
	s->answer = *m;
	m->m.keys = NULL; /* now the answer's */
	m->m.values = NULL;
	s->done = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

static void request(struct node *n, const struct van_message *m)
{
	struct sight *s = n->argument;

	s->done = false;
	node_send(n, m);
	pthread_mutex_lock(&s->lock);
	while (!s->done)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
	CHECK(s->answer.m.timestamp == m->timestamp);
}

static void *live(void *arg)
{
	struct node *n = arg;
	struct sight *s = n->argument;
	uint64_t seed = (uint64_t)n->id, keys[EACH];
	float values[EACH * DIM];

	for (int i = 0; i < pushes; i++) {
		int server = (int)(random_of(&seed) % SERVERS);
		uint64_t key = random_of(&seed) % 20;
		for (size_t k = 0; k < EACH; k++, key += 1 + random_of(&seed) % 30) {
			keys[k] = key;
			values[k * DIM] = (float)(1 + random_of(&seed) % 9);
			values[k * DIM + 1] = (float)n->id;
		}
		struct van_message m = {.recver = 8 + 2 * server, .timestamp = i, .request = true, .push = true,
					.keys = keys, .n = EACH, .is_float = true, .values = values, .floats = EACH * DIM};
		request(n, &m);
		for (size_t k = 0; k < EACH; k++)
			s->acknowledged[server][keys[k]] += (double)values[k * DIM];
		if (i % 4 != 3)
			continue;
		m = (struct van_message){.recver = 8 + 2 * server, .timestamp = i, .request = true, .pull = true,
					 .keys = keys, .n = EACH, .is_float = true};
		request(n, &m);
		CHECK(s->answer.m.floats == EACH * DIM);
		for (size_t k = 0; k < EACH; k++)
			CHECK((double)s->answer.m.values[k * DIM] >= s->acknowledged[server][keys[k]]);
		free((void *)s->answer.m.keys);
		free((void *)s->answer.m.values);
	}
	return NULL;
}

static void *open_van(void *arg)
{
	struct node *n = arg;

	CHECK(n->van && van_open(n->van, n->id, SERVERS));
	return NULL;
}

static void *close_van(void *arg)
{
	van_stop(((struct node *)arg)->van);
	return NULL;
}

/* each runs a function for all nodes of a kind, in threads. */
static void each(struct node *nodes, size_t n, void *(*run)(void *))
{
	pthread_t t[4];

	for (size_t i = 0; i < n; i++)
		CHECK(pthread_create(t + i, NULL, run, nodes + i) == 0);
	for (size_t i = 0; i < n; i++)
		pthread_join(t[i], NULL);
}

static void start(struct node *n, enum van_role role, int rank, const char *hot)
{
	node_init(n, role, rank);
	node_set(n, "LIBRA_HOT_SET", hot);
	node_set(n, "LIBRA_AGENT", getenv("LIBRA_AGENT"));
	n->van = van_new(&n->host, role);
	if (role == VAN_SERVER)
		n->store = calloc(KEYS * DIM, sizeof *n->store);
	n->handle = role == VAN_SERVER ? serve : see;
	node_customer(n);
}

static int open_one(const char *hot, int rank)
{
	static const char *const names[] = {"LIBRA_JOB", "LIBRA_HOT_EXPONENT"};
	struct node n;

	node_init(&n, VAN_SERVER, rank);
	node_set(&n, "LIBRA_HOT_SET", hot);
	node_set(&n, "LIBRA_AGENT", getenv("LIBRA_AGENT"));
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (getenv(names[i]))
			node_set(&n, names[i], getenv(names[i]));
	n.van = van_new(&n.host, VAN_SERVER);
	printf("%s\n", n.van && van_open(n.van, n.id, rank + 1) ? "open" : n.failed);
	if (n.van)
		van_stop(n.van);
	node_free(&n);
	return 0;
}

int main(int argc, char **argv)
{
	double sums[SERVERS][KEYS] = {{0}};
	unsigned harvests = 0;

	if (argc == 4 && strcmp(argv[1], "open") == 0)
		return open_one(argv[2], atoi(argv[3]));
	CHECK(argc == 3);
	pushes = atoi(argv[2]);
	for (int i = 0; i < SERVERS; i++)
		start(servers + i, VAN_SERVER, i, argv[1]);
	for (int i = 0; i < WORKERS; i++) {
		start(workers + i, VAN_WORKER, i, argv[1]);
		workers[i].argument = sights + i;
		pthread_mutex_init(&sights[i].lock, NULL);
		pthread_cond_init(&sights[i].changed, NULL);
	}
	each(servers, SERVERS, open_van);
	each(workers, WORKERS, open_van);
	for (int i = 0; i < SERVERS; i++)
		node_run(servers + i);
	for (int i = 0; i < WORKERS; i++)
		node_run(workers + i);
	each(workers, WORKERS, live);
	each(workers, WORKERS, close_van);
	each(servers, SERVERS, close_van);
	for (int i = 0; i < WORKERS; i++)
		node_end(workers + i);
	for (int i = 0; i < SERVERS; i++)
		node_end(servers + i);
	for (int i = 0; i < SERVERS; i++) {
		harvests += servers[i].harvests;
		for (size_t k = 0; k < KEYS; k++) {
			for (int w = 0; w < WORKERS; w++)
				sums[i][k] += sights[w].acknowledged[i][k];
			CHECK(servers[i].store[k * DIM] == sums[i][k]);
		}
		CHECK(!*servers[i].failed && !servers[i].warned);
		node_free(servers + i);
	}
	for (int i = 0; i < WORKERS; i++) {
		CHECK(!*workers[i].failed && !workers[i].warned);
		node_free(workers + i);
	}
	printf("%u\n", harvests);
	return 0;
}
