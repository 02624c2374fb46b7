/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server's sums: each harvest goes to the handle as a push of the server itself, with timestamps
 * from -2 down, and the handle's answer to it stays here. Pulls that name a hot key wait until a
 * harvest that was requested after their arrival has been answered: the aggregator has acknowledged
 * what they must see, but the store may not have it yet.
 *
 * The handle has one harvest at a time, since a customer's queue keeps no order.
 */
#include <stdlib.h>

#include "internal.h"

/* release takes the pulls that wait for no harvest any more. */
static struct held *release(struct van *v)
{
	struct harvests *h = &v->harvests;
	struct held *go = NULL, **last = &go, *e;

	for (struct held **at = &h->held; (e = *at);) {
		if (e->need == 0 || e->need > h->answered) {
			at = &e->next;
			h->last = at;
			continue;
		}
		*at = e->next;
		*last = e;
		last = &e->next;
	}
	*last = NULL;
	return go;
}

static void hand_over(struct van *v, struct held *go)
{
	for (struct held *e; (e = go);) {
		go = e->next;
		if (e->kept)
			gate_give(v, e->kept, e->app, e->customer);
		free(e);
	}
}

static void hold(struct van *v, void *kept, int app, int customer)
{
	struct harvests *h = &v->harvests;
	struct held *e = malloc(sizeof *e);

	if (!e)
		abort();
	*e = (struct held){.kept = kept, .app = app, .customer = customer};
	*(h->held ? h->last : &h->held) = e;
	h->last = &e->next;
	h->unasked++;
	van_poke(v);
}

/* harvest_hold keeps a pull that names a hot key. */
bool harvest_hold(struct van *v, const struct van_message *m, void *message)
{
	const struct harvests *h = &v->harvests;

	if (v->role != VAN_SERVER || !m->request || !m->pull || m->simple || m->app != 0 || !m->keys || !m->is_float ||
	    !split_names(&v->hot, m->keys, m->n))
		return false;
	if (h->answered_asked_ms && van_ms() - h->answered_asked_ms <= v->set.staleness_ms - 1)
		return false;
	hold(v, v->host.keep(v->host.self, message), m->app, gate_customer(v, m));
	return true;
}

/* settle notes that the store has a harvest, and hands over the pulls that waited for it. */
static void settle(struct van *v, uint64_t number, int64_t asked_ms)
{
	pthread_mutex_lock(&v->lock);
	v->harvests.answered = number;
	v->harvests.answered_asked_ms = asked_ms;
	struct held *go = release(v);
	pthread_cond_broadcast(&v->changed);
	pthread_mutex_unlock(&v->lock);
	hand_over(v, go);
}

/*
 * harvest_answered returns whether a message that the server sends is the handle's answer to a
 * harvest, also if it answers it twice: no other message to this node has such a timestamp.
 */
bool harvest_answered(struct van *v, const struct van_message *m)
{
	struct harvests *h = &v->harvests;

	if (v->role != VAN_SERVER || m->request || m->simple || m->app != 0 || m->timestamp >= -1)
		return false;
	pthread_mutex_lock(&v->lock);
	bool ours = m->recver == v->node, first = ours && h->given && m->timestamp == h->timestamp;
	uint64_t number = h->given;
	int64_t asked = h->given_asked_ms;
	if (first)
		h->given = 0;
	pthread_mutex_unlock(&v->lock);
	if (first) {
		settle(v, number, asked);
		van_poke(v);
	}
	return ours;
}

/* submit requests a harvest. One at once is for the pulls that have none yet. */
static bool submit(struct van *v, bool now)
{
	struct harvests *h = &v->harvests;
	struct harvest *a = h->at + (h->first + h->count) % 2;

	a->number = ++h->submitted;
	a->now = now;
	a->done = false;
	a->asked_ms = van_ms();
	h->count++;
	if (now) {
		pthread_mutex_lock(&v->lock);
		for (struct held *e = h->held; e; e = e->next)
			if (e->need == 0)
				e->need = a->number;
		h->unasked = 0;
		pthread_mutex_unlock(&v->lock);
	}
	if (libra_harvest(v->sessions->libra, now, a->keys, a->sums, v->hot.n, &a->rows, &a->ticket) == LIBRA_OK)
		return true;
	van_fail(v, "sums of server %d: %s", v->sessions->rank, libra_last_error()->text);
	return false;
}

/*
 * request requests a harvest at once if a pull has none, or else one that is due some time, unless there is one.
 * Returns false after a failure.
 */
static bool request(struct van *v)
{
	struct harvests *h = &v->harvests;
	bool coming = false;

	for (unsigned i = 0; i < h->count; i++) {
		const struct harvest *a = h->at + (h->first + i) % 2;
		coming |= a->now && !a->done;
	}
	pthread_mutex_lock(&v->lock);
	bool wanted = h->unasked > 0, stopping = v->stopping;
	pthread_mutex_unlock(&v->lock);
	if (wanted && !coming && h->count < 2)
		return submit(v, true);
	return h->count > 0 || stopping || submit(v, false);
}

/* give gives a harvest to the handle. */
static void give(struct van *v, struct harvest *a)
{
	struct harvests *h = &v->harvests;

	h->first = (h->first + 1) % 2;
	h->count--;
	if (a->rows == 0) {
		settle(v, a->number, a->asked_ms);
		return;
	}
	pthread_mutex_lock(&v->lock);
	h->given = a->number;
	h->patience = van_patience();
	h->returned = false;
	h->given_asked_ms = a->asked_ms;
	h->timestamp = h->timestamp > -2 || h->timestamp == INT32_MIN ? -2 : h->timestamp - 1;
	int timestamp = h->timestamp;
	pthread_mutex_unlock(&v->lock);
	void *kept = v->host.harvest(v->host.self, timestamp, a->keys, a->rows, a->sums, a->rows * v->hot.dim);
	gate_give(v, kept, 0, 0);
}

/*
 * overdue fails if the handle does not answer, and returns when to call it again. Time counts when the customer has the
 * harvest, and anew when the handle has returned from it: the customer may be busy with another request.
 */
static int64_t overdue(struct van *v)
{
	struct harvests *h = &v->harvests;
	bool back = v->host.returned(v->host.self);

	pthread_mutex_lock(&v->lock);
	bool waits = h->given;
	if (!gate_is_open(&v->gate, 0, 0) || (back && !h->returned))
		h->patience = van_patience();
	h->returned = back;
	int64_t most = back ? UNANSWERED_MS : BUSY_MS, left = van_left(&h->patience, most);
	pthread_mutex_unlock(&v->lock);
	if (!waits)
		return NEVER;
	if (left <= 0)
		van_fail(v, "the handle of server %d has left sums, which it gets as a push, unanswered for %d s: %s",
			 v->sessions->rank, (int)most / 1000,
			 back ? "a handle has to add and answer each push, without waiting for others"
			      : "let it take less time for each request, and do other work in another thread");
	return van_ms() + (left < LOOK_MS ? left : LOOK_MS);
}

/* harvest_step requests harvests and gives them to the handle. It returns when to call it again. */
int64_t harvest_step(struct van *v)
{
	struct harvests *h = &v->harvests;

	if (v->role != VAN_SERVER || v->n_sessions == 0)
		return NEVER;
	while (request(v) && h->count > 0) {
		struct harvest *a = h->at + h->first;
		int code = a->done ? LIBRA_OK : libra_wait(v->sessions->libra, a->ticket, 0);
		if (code == LIBRA_TIMEOUT)
			break;
		if (code) {
			van_fail(v, "sums of server %d: %s", v->sessions->rank, libra_last_error()->text);
			break;
		}
		a->done = true;
		pthread_mutex_lock(&v->lock);
		bool busy = h->given;
		pthread_mutex_unlock(&v->lock);
		if (busy)
			break;
		give(v, a);
	}
	return overdue(v);
}

/* has_stop returns whether van_stop still waits. */
static bool has_stop(const struct harvests *h)
{
	for (const struct held *e = h->held; e; e = e->next)
		if (!e->kept)
			return true;
	return false;
}

/*
 * harvest_last gives the last sums to the handle, and returns whether that has answered. It is
 * called with the lock held.
 */
bool harvest_last(struct van *v)
{
	struct patience patience = van_patience();

	if (v->role != VAN_SERVER || v->n_sessions == 0)
		return true;
	hold(v, NULL, 0, 0);
	while (has_stop(&v->harvests) && !v->failed && van_wait(v, &patience)) {
	}
	return !has_stop(&v->harvests) || v->failed;
}

void harvest_free(struct van *v)
{
	for (struct held *e; (e = v->harvests.held);) {
		v->harvests.held = e->next;
		if (e->kept)
			v->host.drop(v->host.self, e->kept);
		free(e);
	}
}
