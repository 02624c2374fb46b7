/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include "host.h"

struct node *net[64];

uint64_t random_of(uint64_t *seed)
{
	uint64_t x = *seed += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static void *copy(const void *from, size_t n)
{
	void *to = malloc(n ? n : 1);

	CHECK(to);
	return n ? memcpy(to, from, n) : to;
}

struct msg *msg_new(const struct van_message *m)
{
	struct msg *c = calloc(1, sizeof *c);

	CHECK(c);
	c->m = *m;
	if (m->keys)
		c->m.keys = copy(m->keys, m->n * 8);
	if (m->values)
		c->m.values = copy(m->values, m->floats * 4);
	return c;
}

void msg_free(struct msg *m)
{
	if (!m)
		return;
	free((void *)m->m.keys);
	free((void *)m->m.values);
	free(m);
}

/* put appends; take removes the message at a place. Both are called with the node's lock held. */
static void put(struct node *n, struct queue *q, struct msg *m)
{
	struct msg **at = &q->first;

	while (*at)
		at = &(*at)->next;
	m->next = NULL;
	*at = m;
	q->n++;
	pthread_cond_broadcast(&n->changed);
}

static struct msg *take(struct queue *q, size_t place)
{
	struct msg **at = &q->first, *m;

	while (place--)
		at = &(*at)->next;
	m = *at;
	if (m) {
		*at = m->next;
		q->n--;
	}
	return m;
}

static const char *variable(void *self, const char *name)
{
	const struct node *n = self;

	for (size_t i = 0; n->variables[i]; i += 2)
		if (strcmp(n->variables[i], name) == 0)
			return n->variables[i + 1];
	return NULL;
}

static void *keep(void *self, void *message)
{
	(void)self;
	return message;
}

static void *harvest(void *self, int timestamp, const uint64_t *keys, size_t k, const float *sums, size_t floats)
{
	struct node *n = self;

	return msg_new(&(struct van_message){.sender = n->id, .recver = n->id, .timestamp = timestamp, .request = true,
					     .push = true, .keys = keys, .n = k, .is_float = true, .values = sums, .floats = floats});
}

static bool returned(void *self)
{
	struct node *n = self;

	pthread_mutex_lock(&n->lock);
	bool is = !n->busy;
	pthread_mutex_unlock(&n->lock);
	return is;
}

static bool exists(void *self, int app, int customer)
{
	struct node *n = self;

	pthread_mutex_lock(&n->lock);
	bool is = n->customer && app == 0 && (n->role == VAN_WORKER || customer == 0);
	pthread_mutex_unlock(&n->lock);
	return is;
}

static void accept_message(void *self, void *kept)
{
	struct node *n = self;

	pthread_mutex_lock(&n->lock);
	CHECK(n->customer);
	put(n, &n->accepted, kept);
	pthread_mutex_unlock(&n->lock);
}

static void drop(void *self, void *kept)
{
	struct node *n = self;

	n->dropped++;
	msg_free(kept);
}

static void fail(void *self, const char *text)
{
	struct node *n = self;

	pthread_mutex_lock(&n->lock);
	snprintf(n->failed, sizeof n->failed, "%s", text);
	pthread_cond_broadcast(&n->changed);
	pthread_mutex_unlock(&n->lock);
}

static void warn(void *self, const char *text)
{
	struct node *n = self;

	(void)text;
	pthread_mutex_lock(&n->lock);
	n->warned++;
	pthread_cond_broadcast(&n->changed);
	pthread_mutex_unlock(&n->lock);
}

void node_init(struct node *n, enum van_role role, int rank)
{
	*n = (struct node){.id = role == VAN_SCHEDULER ? 1 : 8 + 2 * rank + (role == VAN_WORKER), .role = role};
	n->seed = (uint64_t)n->id;
	n->host = (struct van_host){n, variable, keep, harvest, returned, exists, accept_message, drop, fail, warn};
	pthread_mutex_init(&n->lock, NULL);
	pthread_cond_init(&n->changed, NULL);
	net[n->id] = n;
}

void node_set(struct node *n, const char *name, const char *value)
{
	size_t i = 0;

	while (n->variables[i] && strcmp(n->variables[i], name))
		i += 2;
	n->variables[i] = name;
	n->variables[i + 1] = value;
}

void node_free(struct node *n)
{
	struct msg *m;

	if (n->van)
		van_free(n->van);
	while ((m = take(&n->accepted, 0)) || (m = take(&n->incoming, 0)))
		msg_free(m);
	free(n->store);
	net[n->id] = NULL;
	pthread_mutex_destroy(&n->lock);
	pthread_cond_destroy(&n->changed);
}

void node_customer(struct node *n)
{
	pthread_mutex_lock(&n->lock);
	n->customer = true;
	pthread_mutex_unlock(&n->lock);
}

void node_send(struct node *n, const struct van_message *m)
{
	struct van_rest rest;
	struct van_message r = *m;
	enum van_way way = van_send(n->van, m, &rest);
	struct node *to = net[m->recver];

	if (way == VAN_TAKEN)
		return;
	r.sender = n->id;
	if (way == VAN_SPLIT) {
		r.keys = rest.keys;
		r.values = rest.values;
		r.n = rest.n;
		r.floats = rest.floats;
		r.is_float = rest.n > 0;
	}
	pthread_mutex_lock(&to->lock);
	put(to, &to->incoming, msg_new(&r));
	pthread_mutex_unlock(&to->lock);
	free(rest.keys);
	free(rest.values);
}

void node_receive(struct node *n, struct msg *m)
{
	if (van_receive(n->van, &m->m, m) == VAN_PASS)
		accept_message(n, m);
}

static struct msg *get(struct node *n, struct queue *q, bool wait)
{
	struct timespec until;
	struct msg *m;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 30;
	pthread_mutex_lock(&n->lock);
	while (!(m = take(q, 0)) && wait)
		CHECK(pthread_cond_timedwait(&n->changed, &n->lock, &until) == 0);
	pthread_mutex_unlock(&n->lock);
	return m;
}

struct msg *node_take(struct node *n)
{
	return get(n, &n->accepted, false);
}

struct msg *node_wait(struct node *n)
{
	return get(n, &n->accepted, true);
}

struct msg *node_sent(struct node *n)
{
	return get(n, &n->incoming, false);
}

const char *node_failed(struct node *n)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 30;
	pthread_mutex_lock(&n->lock);
	while (!*n->failed)
		CHECK(pthread_cond_timedwait(&n->changed, &n->lock, &until) == 0);
	pthread_mutex_unlock(&n->lock);
	return n->failed;
}

/*
 * next waits for a message of a queue, at a random place of it if in_order is not set. NULL: the
 * node ends.
 */
static struct msg *next(struct node *n, struct queue *q, bool in_order)
{
	pthread_mutex_lock(&n->lock);
	while (!q->n && !n->stop)
		pthread_cond_wait(&n->changed, &n->lock);
	struct msg *m = q->n ? take(q, in_order ? 0 : random_of(&n->seed) % q->n) : NULL;
	pthread_mutex_unlock(&n->lock);
	return m;
}

static void *receive(void *arg)
{
	struct node *n = arg;

	for (struct msg *m; (m = next(n, &n->incoming, true));)
		node_receive(n, m);
	return NULL;
}

static void *work(void *arg)
{
	struct node *n = arg;

	for (struct msg *m; (m = next(n, &n->accepted, false));) {
		n->handle(n, m);
		msg_free(m);
	}
	return NULL;
}

void node_run(struct node *n)
{
	CHECK(pthread_create(&n->receiver, NULL, receive, n) == 0);
	CHECK(pthread_create(&n->worker, NULL, work, n) == 0);
}

void node_end(struct node *n)
{
	pthread_mutex_lock(&n->lock);
	n->stop = true;
	pthread_cond_broadcast(&n->changed);
	pthread_mutex_unlock(&n->lock);
	pthread_join(n->receiver, NULL);
	pthread_join(n->worker, NULL);
}
