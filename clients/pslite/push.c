/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker's pushes: hot pairs go to the agent, the others to the server, at the same time. The
 * server's response to the others is handed over when the aggregator has acknowledged the hot ones,
 * too.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define LOST UINT64_MAX /* the ticket of a part that could not be submitted */

/* The hot pairs of a push. */
struct pairs {
	uint64_t *keys;
	float *values;
	size_t n;
};

static struct pending **list_of(struct van *v, int server, int customer, int timestamp)
{
	return v->pending + ((unsigned)timestamp + 31 * (unsigned)customer + 7 * (unsigned)server) % PENDING_LISTS;
}

static struct pending **find(struct van *v, int server, int customer, int timestamp)
{
	struct pending **at = list_of(v, server, customer, timestamp);

	while (*at && ((*at)->server != server || (*at)->customer != customer || (*at)->timestamp != timestamp))
		at = &(*at)->next;
	return at;
}

static void end(struct pending **at)
{
	struct pending *p = *at;

	*at = p->next;
	free(p);
}

/* push_hold keeps the response to a push whose hot pairs are not acknowledged yet. */
bool push_hold(struct van *v, const struct van_message *m, void *message)
{
	if (v->role != VAN_WORKER || m->request || !m->push || m->pull || m->simple || m->app != 0)
		return false;
	struct pending **at = find(v, m->sender, m->customer, m->timestamp);
	if (!*at || (*at)->response)
		return false;
	if ((*at)->parts == 0) {
		end(at);
		return false;
	}
	(*at)->response = v->host.keep(v->host.self, message);
	return true;
}

/* push_step takes what the agent has acknowledged. */
void push_step(struct van *v, struct session *s)
{
	for (;;) {
		pthread_mutex_lock(&v->lock);
		struct part *part = s->first;
		libra_ticket ticket = part ? part->ticket : 0;
		s->waits = part && !ticket;
		pthread_mutex_unlock(&v->lock);
		if (!ticket)
			return;
		int code = ticket == LOST ? LIBRA_JOB_ENDED : libra_wait(s->libra, ticket, 0);
		if (code == LIBRA_TIMEOUT)
			return;
		if (code && code != LIBRA_JOB_ENDED) {
			van_fail(v, "hot pairs for server %d: %s", s->rank, libra_last_error()->text);
			return;
		}
		void *response = NULL;
		pthread_mutex_lock(&v->lock);
		s->first = part->next;
		s->lost |= code != LIBRA_OK;
		struct pending *p = part->of;
		if (code == LIBRA_OK && --p->parts == 0 && p->response) {
			response = p->response;
			end(find(v, p->server, p->customer, p->timestamp));
		}
		free(part);
		if (--v->parts == 0)
			pthread_cond_broadcast(&v->changed);
		pthread_mutex_unlock(&v->lock);
		if (response)
			v->host.accept(v->host.self, response);
	}
}

/* submit passes hot pairs to the agent. It waits for room. */
static void submit(struct van *v, struct session *s, struct pending *p, const uint64_t *keys,
		   const float *values, size_t n)
{
	struct part *part = malloc(sizeof *part);
	libra_ticket ticket = LOST;

	if (!part)
		abort();
	*part = (struct part){.of = p};
	pthread_mutex_lock(&v->lock);
	*(s->first ? s->last : &s->first) = part;
	s->last = &part->next;
	p->parts++;
	v->parts++;
	pthread_mutex_unlock(&v->lock);
	int code = libra_push(s->libra, keys, values, n, &ticket);
	if (code && code != LIBRA_JOB_ENDED)
		van_fail(v, "hot pairs for server %d: %s", s->rank, libra_last_error()->text);
	pthread_mutex_lock(&v->lock);
	part->ticket = code ? LOST : ticket;
	bool waits = s->waits;
	s->waits = false;
	pthread_mutex_unlock(&v->lock);
	if (waits || code)
		van_poke(v);
}

/* submit_all submits hot pairs in parts that leave the agent room to work on several. */
static void submit_all(struct van *v, struct session *s, const struct van_message *m, const struct pairs *hot)
{
	size_t dim = v->hot.dim, most = libra_info(s->libra)->buffer_bytes / 4 / (8 + 4 * dim);
	struct pending *p = malloc(sizeof *p);

	if (!p)
		abort();
	if (most == 0)
		most = 1;
	*p = (struct pending){.server = m->recver, .customer = m->customer, .timestamp = m->timestamp, .parts = 1};
	pthread_mutex_lock(&v->lock);
	struct pending **list = list_of(v, p->server, p->customer, p->timestamp);
	p->next = *list;
	*list = p;
	pthread_mutex_unlock(&v->lock);
	for (size_t i = 0; i < hot->n; i += most)
		submit(v, s, p, hot->keys + i, hot->values + i * dim, hot->n - i < most ? hot->n - i : most);
	pthread_mutex_lock(&v->lock);
	p->parts--; /* the server has nothing to respond to yet */
	pthread_mutex_unlock(&v->lock);
}

/*
 * fits returns whether all values are finite and in the range of the job's numbers, which is 2^(63
 * + exponent).
 */
static bool fits(const float *values, size_t n, int exponent)
{
	uint32_t most = exponent + 190 < 255 ? (uint32_t)(exponent + 190) : 255, bits;

	for (size_t i = 0; i < n; i++) {
		memcpy(&bits, values + i, sizeof bits);
		if ((bits >> 23 & 0xff) >= most)
			return false;
	}
	return true;
}

/*
 * partition copies pairs of one value to two places each, of which one remains: as many branches that
 * nobody can foresee would take longer. The arrays have room for one pair more.
 */
static void partition(const struct van_message *m, const size_t *places, struct pairs *hot, struct van_rest *rest)
{
	size_t h = 0, c = 0;

	for (size_t i = 0; i < m->n; i++) {
		bool is = places[h] == i;
		hot->keys[h] = rest->keys[c] = m->keys[i];
		hot->values[h] = rest->values[c] = m->values[i];
		h += is;
		c += !is;
	}
}

/* pick copies hot pairs, and the rest, to arrays of their own. */
static bool pick(const struct van_message *m, const size_t *places, size_t n, size_t dim, struct pairs *hot,
		 struct van_rest *rest)
{
	size_t from = 0, to = 0;

	*hot = (struct pairs){.keys = malloc((n + 1) * 8), .values = malloc((n + 1) * dim * 4), .n = n};
	*rest = (struct van_rest){.n = m->n - n, .floats = (m->n - n) * dim};
	if (rest->n) {
		rest->keys = malloc((rest->n + 1) * 8);
		rest->values = malloc((rest->floats + 1) * 4);
	}
	if (!hot->keys || !hot->values || (rest->n && (!rest->keys || !rest->values)))
		return false;
	if (dim == 1 && rest->n && m->n / 8 < n) {
		partition(m, places, hot, rest);
		return true;
	}
	for (size_t i = 0; i <= n; i++) {
		size_t at = i < n ? places[i] : m->n, cold = at - from;
		if (cold) {
			memcpy(rest->keys + to, m->keys + from, cold * 8);
			memcpy(rest->values + to * dim, m->values + from * dim, cold * dim * 4);
		}
		to += cold;
		from = at + 1;
		if (i < n) {
			hot->keys[i] = m->keys[at];
			memcpy(hot->values + i * dim, m->values + at * dim, dim * 4);
		}
	}
	return true;
}

static void drop(struct van_rest *rest)
{
	free(rest->keys);
	free(rest->values);
	*rest = (struct van_rest){0};
}

/* push_fits returns whether a message is a push that could be split, if its keys were hot. */
bool push_fits(const struct van_message *m)
{
	return m->request && m->push && !m->pull && !m->simple && m->app == 0 && m->head == 0 && !m->lens && m->keys &&
	       m->is_float && split_ascend(m->keys, m->n);
}

/* push_send takes the hot pairs out of a push that push_fits, to the server of a session. */
enum van_way push_send(struct van *v, struct session *s, const struct van_message *m, struct van_rest *rest)
{
	size_t dim = v->hot.dim, *places;
	struct pairs hot = {0};
	enum van_way way = VAN_PASS;

	if (m->floats != m->n * dim)
		return VAN_PASS;
	size_t n = split_find(&v->hot, m->keys, m->n, &places);
	if (n && pick(m, places, n, dim, &hot, rest) && fits(hot.values, n * dim, v->set.exponent)) {
		submit_all(v, s, m, &hot);
		way = VAN_SPLIT;
	} else if (n) {
		drop(rest);
	}
	free(hot.keys);
	free(hot.values);
	free(places);
	return way;
}

void push_free(struct van *v)
{
	for (size_t i = 0; i < PENDING_LISTS; i++)
		while (v->pending[i]) {
			if (v->pending[i]->response)
				v->host.drop(v->host.self, v->pending[i]->response);
			end(v->pending + i);
		}
}
