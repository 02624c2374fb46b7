/* SPDX-License-Identifier: Apache-2.0 */
/* What the other files stand on: the time, and whether this process may use a session. */
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>

#include "internal.h"

int64_t now_ns(int clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

/* session_forked tells whether this process is a child of the one that opened the session. */
bool session_forked(const struct libra_session *s)
{
	return s->guard ? *s->guard == 0 : s->pid != getpid();
}

/* session_check tells whether this process may use the session. */
int session_check(const struct libra_session *s, const char *what)
{
	if (!s)
		return error_set(LIBRA_USAGE, "%s: the session is NULL", what);
	if (session_forked(s))
		return error_set(LIBRA_FORKED, "%s: %s", what, libra_code_text(LIBRA_FORKED));
	return LIBRA_OK;
}
