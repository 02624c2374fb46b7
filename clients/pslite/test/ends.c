/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a van, and what it does at the end of others: of a server, a job, an agent, or a
 * handle that does not answer.
 */
#include <string.h>
#include <time.h>

#include "../internal.h"
#include "fake.h"
#include "host.h"
#include "units.h"

static void *stop(void *v)
{
	van_stop(v);
	return NULL;
}

/* The end waits for pushes, and gives the last sums to the handle. */
void test_stop(void)
{
	struct node s, w;
	const uint64_t hot[] = {3};
	pthread_t t;
	struct msg *m;

	fake_reset(1);
	fake_automatic(true, false, true);
	setup(&s, VAN_SERVER, 0, 1);
	setup(&w, VAN_WORKER, 0, 1);
	push_as(&w, 8, 0, 0, hot, 1);
	msg_free(node_sent(&s));
	CHECK(pthread_create(&t, NULL, stop, w.van) == 0);
	fake_acknowledge(0);
	pthread_join(t, NULL);
	CHECK(pthread_create(&t, NULL, stop, s.van) == 0);
	m = node_wait(&s);
	CHECK(m->m.timestamp == -2 && m->m.n == 1 && m->m.values[0] == 1);
	answer(&s, m);
	node_send(&s, &(struct van_message){.recver = 8, .timestamp = -2, .push = true}); /* twice */
	CHECK(!node_sent(&s));
	pthread_join(t, NULL);
	push_as(&w, 8, 0, 1, hot, 1); /* a message that comes after the end passes */
	m = node_sent(&s);
	CHECK(m && m->m.n == 1 && w.warned == 0 && s.warned == 0);
	msg_free(m);
	node_free(&w);
	node_free(&s);
}

/*
 * A dead server: one warning, and no response; with LIBRA_PS_DEAD=exit an error that names the node, in each process
 * that has sent it anything, before its death or after.
 */
void test_dead(void)
{
	struct node s, w[4];
	const uint64_t hot[] = {3};

	fake_reset(1);
	fake_automatic(true, false, true);
	node_init(&s, VAN_SERVER, 0);
	for (int i = 0; i < 4; i++) {
		node_init(w + i, VAN_WORKER, i);
		node_set(w + i, "LIBRA_HOT_SET", hot_file);
		if (i)
			node_set(w + i, "LIBRA_PS_DEAD", "exit");
		node_customer(w + i);
		w[i].van = van_new(&w[i].host, VAN_WORKER);
		CHECK(w[i].van && van_open(w[i].van, w[i].id, 1));
	}
	for (int i = 0; i < 2; i++) {
		push_as(w + i, 8, 0, 0, hot, 1);
		msg_free(node_sent(&s));
		node_receive(w + i, response(8, 0, 0));
	}
	pull_as(w + 2, 8, 0);
	msg_free(node_sent(&s));
	fake_end(0, LIBRA_JOB_ENDED);
	for (int i = 1; i < 3; i++)
		CHECK(strstr(node_failed(w + i), "server 0 (node 8) has ended"));
	CHECK(w[3].warned == 0 && !*w[3].failed);
	fake_refuse(LIBRA_NOT_OPEN, 1); /* there is no other server */
	pull_as(w + 3, 8, 0);
	msg_free(node_sent(&s));
	CHECK(strstr(node_failed(w + 3), "server 0 (node 8) has ended") && w[3].warned == 1);
	push_as(w, 8, 0, 1, hot, 1);
	push_as(w, 8, 0, 2, hot, 1);
	CHECK(!node_take(w) && w[0].warned == 1 && !*w[0].failed);
	for (int i = 0; i < 4; i++) {
		van_stop(w[i].van);
		node_free(w + i);
	}
	node_free(&s);
}

/* wait_for_end waits until a worker has seen that the job of a server has ended. */
static void wait_for_end(struct node *w, int rank)
{
	for (bool ended = false; !ended; nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL)) {
		pthread_mutex_lock(&w->van->lock);
		ended = w->van->sessions[rank].ended;
		pthread_mutex_unlock(&w->van->lock);
	}
}

/* A job that ends before it is used was that of a program before. */
void test_before(void)
{
	struct node s, w;
	struct msg *m;

	fake_reset(1);
	fake_automatic(true, false, true);
	node_init(&s, VAN_SERVER, 0);
	setup(&w, VAN_WORKER, 0, 1);
	fake_end(0, LIBRA_JOB_ENDED);
	wait_for_end(&w, 0);
	for (int i = 0; i < 2; i++) {
		push_as(&w, 8, 0, i, (uint64_t[]){3, 4}, 2);
		m = node_sent(&s);
		CHECK(m && m->m.n == 1 && fake_pushes(0) == 1 + (unsigned)i);
		msg_free(m);
		node_receive(&w, response(8, 0, i));
		CHECK(!node_take(&w));
		fake_acknowledge(0);
		msg_free(node_wait(&w));
	}
	CHECK(w.warned == 0);
	van_stop(w.van);
	node_free(&w);
	node_free(&s);
}

/*
 * A job that ends in the middle of a program was that of its server, also for a worker that has sent it nothing yet:
 * the next one may be another program's, whose sums it must not change.
 */
void test_after(void)
{
	struct node s[2], w;

	fake_reset(1);
	fake_automatic(true, true, true);
	for (int i = 0; i < 2; i++)
		node_init(s + i, VAN_SERVER, i);
	setup(&w, VAN_WORKER, 0, 2);
	push_as(&w, 8, 0, 0, (uint64_t[]){3, 4}, 2);
	msg_free(node_sent(s));
	pthread_mutex_lock(&w.van->lock);
	w.van->first_ms -= 60000; /* a minute ago */
	pthread_mutex_unlock(&w.van->lock);
	fake_end(1, LIBRA_JOB_ENDED);
	wait_for_end(&w, 1);
	push_as(&w, 10, 0, 1, (uint64_t[]){3, 4}, 2);
	struct msg *m = node_sent(s + 1);
	CHECK(m && m->m.n == 2 && fake_pushes(1) == 0 && w.warned == 1);
	msg_free(m);
	van_stop(w.van);
	node_free(&w);
	node_free(s);
	node_free(s + 1);
}

/*
 * The agent's death, that of the aggregator, although pushes have failed before, and a server's job
 * that ends before its server, are errors.
 */
void test_agent(void)
{
	struct node s, w;

	fake_reset(1);
	setup(&s, VAN_SERVER, 0, 1);
	setup(&w, VAN_WORKER, 0, 2);
	fake_end(1, LIBRA_AGENT_DIED);
	CHECK(strstr(node_failed(&w), "hot pairs for server 1"));
	van_stop(w.van);
	node_free(&w);
	setup(&w, VAN_WORKER, 0, 1);
	fake_automatic(true, false, true);
	push_as(&w, 8, 0, 0, (uint64_t[]){3}, 1);
	msg_free(node_sent(&s));
	fake_fail(0, LIBRA_JOB_ENDED);
	fake_turn(0, false);
	CHECK(!w.warned && !*w.failed);
	fake_end(0, LIBRA_AGGREGATOR_LOST);
	CHECK(strstr(node_failed(&w), "hot pairs for server 0"));
	fake_end(0, LIBRA_JOB_ENDED);
	CHECK(strstr(node_failed(&s), "sums of server 0"));
	van_stop(w.van);
	van_stop(s.van);
	node_free(&w);
	node_free(&s);
}

/* A handle that does not answer. Of a minute for which the process was stopped, a second counts. */
void test_unanswered(void)
{
	struct patience p = van_patience();
	struct node s, w;
	const uint64_t hot[] = {3};

	p.looked_ms -= 60000;
	CHECK(van_left(&p, UNANSWERED_MS) == UNANSWERED_MS - LOOK_MS);
	fake_reset(1);
	setup(&s, VAN_SERVER, 0, 1);
	setup(&w, VAN_WORKER, 0, 1);
	open_gate(&s);
	push_as(&w, 8, 0, 0, hot, 1);
	node_receive(&s, pull(1, hot, 1));
	CHECK(strstr(node_failed(&s), "unanswered for 5 s"));
	van_stop(w.van);
	van_stop(s.van);
	node_free(&w);
	node_free(&s);
}

/* A handle that is busy has more time, but not all the time in the world. */
void test_busy(void)
{
	struct node s, w;
	const uint64_t hot[] = {3};

	fake_reset(1);
	setup(&s, VAN_SERVER, 0, 1);
	setup(&w, VAN_WORKER, 0, 1);
	pthread_mutex_lock(&s.lock);
	s.busy = true;
	pthread_mutex_unlock(&s.lock);
	open_gate(&s);
	push_as(&w, 8, 0, 0, hot, 1);
	node_receive(&s, pull(1, hot, 1));
	msg_free(node_wait(&s));
	for (int64_t spent = 2 * UNANSWERED_MS; spent <= BUSY_MS; spent += BUSY_MS - 2 * UNANSWERED_MS) {
		struct patience *p = &s.van->harvests.patience;
		pthread_mutex_lock(&s.van->lock);
		int64_t looked = p->looked_ms = 1;
		p->spent_ms = spent;
		van_poke(s.van);
		while (p->looked_ms == looked) {
			pthread_mutex_unlock(&s.van->lock);
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
			pthread_mutex_lock(&s.van->lock);
		}
		pthread_mutex_unlock(&s.van->lock);
	}
	CHECK(strstr(node_failed(&s), "unanswered for 60 s"));
	van_stop(w.van);
	van_stop(s.van);
	node_free(&w);
	node_free(&s);
}
