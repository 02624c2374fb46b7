/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of the environment that docs/pslite.md lists. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MOST_PATH 4000

/* whole reads a number, and returns false with an error that names the variable. */
static bool whole(const struct van_host *host, const char *name, long least, long most, long *value, char *error,
		  size_t room)
{
	const char *text = host->variable(host->self, name);
	char *end;

	if (!text)
		return true;
	errno = 0;
	long n = strtol(text, &end, 10);
	if (errno || end == text || *end || n < least || n > most) {
		snprintf(error, room, "%s: \"%.100s\" is no whole number from %ld to %ld: set it to one, or unset it",
			 name, text, least, most);
		return false;
	}
	*value = n;
	return true;
}

bool settings_read(struct settings *set, const struct van_host *host, char *error, size_t room)
{
	const char *job = host->variable(host->self, "LIBRA_JOB"), *dead = host->variable(host->self, "LIBRA_PS_DEAD");
	bool good = false;
	long exponent = -30, staleness = 0, resend = 0;

	*set = (struct settings){.hot_set = host->variable(host->self, "LIBRA_HOT_SET"),
				 .keys_out = host->variable(host->self, "LIBRA_KEYS_OUT")};
	if (!whole(host, "LIBRA_HOT_EXPONENT", -100, 60, &exponent, error, room) ||
	    !whole(host, "LIBRA_STALENESS", 0, 3600000, &staleness, error, room) ||
	    !whole(host, "PS_RESEND", 0, 1, &resend, error, room))
		return false;
	if (!job)
		job = "hot";
	if (set->hot_set && !*set->hot_set)
		snprintf(error, room, "LIBRA_HOT_SET: it is empty: name a file of libra hotset build, or unset it");
	else if (set->keys_out && (!*set->keys_out || strlen(set->keys_out) > MOST_PATH))
		snprintf(error, room, "LIBRA_KEYS_OUT: it is %s: name a folder, or unset it", *set->keys_out ? "too long" : "empty");
	else if (resend)
		snprintf(error, room, "PS_RESEND: 1, but the van holds messages back, and ps-lite would send them again: "
			 "unset it");
	else if (!*job || strlen(job) >= sizeof set->job || strchr(job, '/'))
		snprintf(error, room, "LIBRA_JOB: \"%.100s\" is no name of a range: give that of the agent's file, without "
			 "a number", job);
	else if (dead && strcmp(dead, "exit") && strcmp(dead, "wait"))
		snprintf(error, room, "LIBRA_PS_DEAD: \"%.100s\" is neither exit nor wait: set it to one of these, or "
			 "unset it", dead);
	else
		good = true;
	if (!good)
		return false;
	snprintf(set->job, sizeof set->job, "%s", job);
	set->exponent = (int)exponent;
	set->staleness_ms = staleness;
	set->exit_if_dead = dead && strcmp(dead, "exit") == 0;
	return true;
}
