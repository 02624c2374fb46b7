/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libra.h that the van uses, on jobs in the memory of the test, which decides what
 * happens when.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>

#include "../../c/libra.h"

#define FAKE_JOBS 4

/* Keys of the hot set of all tests: 3, 6, ..., 3 * FAKE_ROWS. */
#define FAKE_ROWS 100

/* fake_reset ends all jobs. The rows of the next have dim values. */
void fake_reset(unsigned dim);

/*
 * What the aggregator does by itself: add pushes, acknowledge them. Otherwise the test calls the
 * functions below.
 */
void fake_automatic(bool adds, bool acknowledges, bool harvests);
unsigned fake_pushes(int job); /* that were submitted */
unsigned fake_harvests(int job, bool now); /* that wait, of one kind */
void fake_add(int job);         /* all pushes that were submitted */
void fake_acknowledge(int job); /* the oldest push that is not */
void fake_fail(int job, int code); /* likewise, with a code */
void fake_freeze(int job);      /* the oldest harvest that is not: it has what was added so far */
void fake_answer(int job);      /* the oldest harvest, which was frozen */
void fake_end(int job, int code); /* of all sessions with it */
void fake_refuse(int code, int times); /* libra_open */

/* split.c: which keys are hot. */
void test_split(void);

/* keys.c: a worker with LIBRA_KEYS_OUT of the environment; what does not open is printed. */
void test_keys(const char *hot_file);

/* fake_turn waits until the van's thread has seen all that has happened. */
void fake_turn(int job, bool owner);

#endif
