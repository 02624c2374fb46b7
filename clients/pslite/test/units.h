/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the van's logic share: nodes with a hot set, and their messages. It is in units.c.
 */
#ifndef UNITS_H
#define UNITS_H

#include "host.h"

extern const char *hot_file;

void setup(struct node *n, enum van_role role, int rank, int servers);
void push_as(struct node *w, int server, int customer, int timestamp, const uint64_t *keys, size_t n);
void pull_as(struct node *w, int server, int timestamp);
struct msg *response(int server, int customer, int timestamp);
struct msg *pull(int timestamp, const uint64_t *keys, size_t n);
void answer(struct node *s, struct msg *m);
void open_gate(struct node *n);

/* ends.c: the van's own end, and that of others. */
void test_stop(void);
void test_dead(void);
void test_before(void);
void test_after(void);
void test_agent(void);
void test_unanswered(void);
void test_busy(void);

#endif
