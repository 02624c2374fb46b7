/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests wait until their customer exists. ps-lite's receiving thread waits itself, for 5
 * seconds, and the response to the barrier, which the program needs before it makes a customer, may
 * be behind it.
 *
 * A program sets its handle after it has made the customer; ps-lite has no sign of that. So a
 * customer gets no request until SETTLE_MS after it was seen first. A server's is looked for before
 * there is a request, so that the first is not late.
 */
#include <stdlib.h>

#include "internal.h"

#define SETTLE_MS 100
#define SEEK_MS   1
#define WATCH_MS  10 /* while no message waits */

static struct customer *find(const struct gate *g, int app, int id)
{
	for (size_t i = 0; i < g->n; i++)
		if (g->known[i].app == app && g->known[i].id == id)
			return g->known + i;
	return NULL;
}

static struct customer *add(struct gate *g, int app, int id)
{
	if (g->n == g->room) {
		size_t room = g->room ? 2 * g->room : 4;
		struct customer *known = realloc(g->known, room * sizeof *known);
		if (!known)
			abort();
		g->known = known;
		g->room = room;
	}
	g->known[g->n] = (struct customer){.app = app, .id = id};
	return g->known + g->n++;
}

/* gate_is_open returns whether a customer gets its messages. */
bool gate_is_open(const struct gate *g, int app, int id)
{
	const struct customer *c = find(g, app, id);

	return c && c->open;
}

static void append(struct van *v, void *kept, int app, int customer)
{
	struct gate *g = &v->gate;
	struct gated *e = malloc(sizeof *e);

	if (!e)
		abort();
	*e = (struct gated){.kept = kept, .app = app, .customer = customer};
	*(g->first ? g->last : &g->first) = e;
	g->last = &e->next;
	van_poke(v);
}

/*
 * gate_customer returns the number of the customer that gets a message, as Van::ProcessDataMsg
 * does.
 */
int gate_customer(const struct van *v, const struct van_message *m)
{
	return v->role == VAN_WORKER ? m->customer : m->app;
}

bool gate_hold(struct van *v, const struct van_message *m, void *message)
{
	int customer = gate_customer(v, m);

	/* Who gets a response has sent a request. */
	if (!m->request || gate_is_open(&v->gate, m->app, customer))
		return false;
	append(v, v->host.keep(v->host.self, message), m->app, customer);
	return true;
}

/*
 * gate_give hands over a message that was held back, to a customer of that number in ps-lite's
 * messages.
 */
void gate_give(struct van *v, void *kept, int app, int customer)
{
	pthread_mutex_lock(&v->lock);
	bool open = gate_is_open(&v->gate, app, customer);
	if (!open)
		append(v, kept, app, customer);
	pthread_mutex_unlock(&v->lock);
	if (open)
		v->host.accept(v->host.self, kept);
}

/* look finds out whether customers exist. */
static void look(struct van *v)
{
	struct gate *g = &v->gate;

	for (struct gated *e = g->first; e; e = e->next)
		if (!find(g, e->app, e->customer))
			add(g, e->app, e->customer);
	for (size_t i = 0; i < g->n; i++) {
		int app = g->known[i].app, id = g->known[i].id;
		if (g->known[i].open)
			continue;
		pthread_mutex_unlock(&v->lock);
		bool exists = v->host.exists(v->host.self, app, id);
		pthread_mutex_lock(&v->lock);
		struct customer *c = g->known + i; /* which may have moved */
		if (!exists)
			c->seen_ms = 0;
		else if (!c->seen_ms)
			c->seen_ms = van_ms();
		else if (van_ms() - c->seen_ms >= SETTLE_MS)
			c->open = true;
	}
}

/* gate_watch looks for a server's customer from now on. */
void gate_watch(struct van *v)
{
	if (!find(&v->gate, 0, 0))
		add(&v->gate, 0, 0);
	van_poke(v);
}

static bool all_open(const struct gate *g)
{
	for (size_t i = 0; i < g->n; i++)
		if (!g->known[i].open)
			return false;
	return true;
}

/*
 * gate_step hands over what waits for a customer that has come. It returns when to call it again.
 */
int64_t gate_step(struct van *v)
{
	struct gate *g = &v->gate;
	struct gated *go = NULL, **last = &go, *e;

	pthread_mutex_lock(&v->lock);
	if (!g->first && all_open(g)) {
		pthread_mutex_unlock(&v->lock);
		return NEVER;
	}
	look(v);
	for (struct gated **at = &g->first; (e = *at);) {
		if (!gate_is_open(g, e->app, e->customer)) {
			at = &e->next;
			g->last = at;
			continue;
		}
		*at = e->next;
		*last = e;
		last = &e->next;
	}
	*last = NULL;
	int64_t again = g->first ? van_ms() + SEEK_MS : all_open(g) ? NEVER : van_ms() + WATCH_MS;
	pthread_mutex_unlock(&v->lock);
	while ((e = go)) {
		go = e->next;
		v->host.accept(v->host.self, e->kept);
		free(e);
	}
	return again;
}

void gate_free(struct van *v)
{
	struct gated *e;

	while ((e = v->gate.first)) {
		v->gate.first = e->next;
		v->host.drop(v->host.self, e->kept);
		free(e);
	}
	free(v->gate.known);
}
