/* SPDX-License-Identifier: Apache-2.0 */
/* Codes, their texts, and the last failure of each thread. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

static const struct {
	int code;
	const char *name, *text;
} codes[] = {
	{LIBRA_OK, "OK", "no error"},
	{LIBRA_BAD_HELLO, "BAD_HELLO", "the first message is not a HELLO"},
	{LIBRA_VERSIONS, "VERSION",
	 "library and agent have no version of the protocol in common: update the older one"},
	{LIBRA_FEATURES, "FEATURES", "the agent lacks a feature that the library needs: update the agent"},
	{LIBRA_NO_JOB, "NO_JOB", "the agent serves no job of this name: see its configuration"},
	{LIBRA_NOT_ALLOWED, "NOT_ALLOWED",
	 "this user may not use the job: add the user or a group of it to the job in the agent's configuration"},
	{LIBRA_DIMENSION, "DIMENSION", "the rows of the job have a different number of gradients"},
	{LIBRA_HOT_SET, "HOT_SET", "the job's hot set differs: use the job's file"},
	{LIBRA_MEMORY, "MEMORY", "more memory than the configuration grants: ask for less, or raise the limit"},
	{LIBRA_CLIENTS, "CLIENTS", "the job has as many clients as the configuration allows"},
	{LIBRA_PARTIES, "PARTIES",
	 "the other clients of the job gave a different number of parties, or all parties have joined, or one has left: "
	 "start all of them anew"},
	{LIBRA_JOB_ENDED, "JOB_ENDED", "the agent's part in the job has ended"},
	{LIBRA_NOT_FINITE, "NOT_FINITE", "a gradient is NaN or infinite"},
	{LIBRA_OUT_OF_RANGE, "OUT_OF_RANGE", "a gradient is out of the range of the job's arithmetic"},
	{LIBRA_NO_BATCH, "NO_BATCH", "no prepared batch has this handle and number of keys"},
	{LIBRA_MODE, "MODE", "the job's mode has no such request"},
	{LIBRA_REFUSED, "REFUSED", "the aggregator or the parameter server refused a frame"},
	{LIBRA_BAD_ANSWER, "BAD_ANSWER", "the aggregator or the parameter server gave an invalid answer"},
	{LIBRA_PARTY_GONE, "PARTY_GONE",
	 "another client of this host that took part in the barrier has ended: start all of them anew"},
	{LIBRA_BAD_STEP, "BAD_STEP", "the barrier's step is not the one that is due"},
	{LIBRA_NO_PARTY, "NO_PARTY", "the session takes no part in barriers: set options.parties"},
	{LIBRA_DROPPED, "DROPPED",
	 "gradients of the step were refused, of this session or of another, so that the step was dropped for all"},
	{LIBRA_NO_SUMS, "NO_SUMS", "no libra_reduce of this session returned sums, or they do not contain these rows"},
	{LIBRA_NO_WEIGHTS, "NO_WEIGHTS",
	 "the job keeps no weights to pull: give it an optimizer, adagrad or sgd (model.optimizer of the cluster file, "
	 "--optimizer of libra run)"},
	{LIBRA_AGENT_CLOSED, "AGENT_CLOSED", "the agent was stopped"},
	{LIBRA_BAD_ENTRY, "BAD_ENTRY", "the agent found an entry that breaks the protocol"},
	{LIBRA_BAD_INDEX, "BAD_INDEX", "the agent found that an index of a ring jumped"},
	{LIBRA_WAKE_FLOOD, "WAKE_FLOOD", "the agent was woken far more often than requests were submitted"},
	{LIBRA_NO_AGENT, "NO_AGENT", "no agent can be reached at the socket: is libra agent running on this host?"},
	{LIBRA_AGENT_DIED, "AGENT_DIED", "the agent has died: open a session with its successor"},
	{LIBRA_FORKED, "FORKED", "the session belongs to the parent process: open another one after fork"},
	{LIBRA_TIMEOUT, "TIMEOUT", "the time is over"},
	{LIBRA_USAGE, "USAGE", "an argument is wrong"},
	{LIBRA_NO_MEMORY, "NO_MEMORY", "the system has no more memory for this process"},
	{LIBRA_TOO_LARGE, "TOO_LARGE", "the request cannot fit the session's buffers: ask for more buffer_bytes"},
	{LIBRA_PROTOCOL, "PROTOCOL", "the agent broke the protocol"},
	{LIBRA_SYSTEM, "SYSTEM", "a system call failed"},
	{LIBRA_CLOSED, "CLOSED", "the session was shut down by this program"},
	{LIBRA_MALFORMED, "MALFORMED", "the bytes are not an encoding of this number of values"},
};

static _Thread_local struct libra_error last;

const char *libra_version(void)
{
	return LIBRA_VERSION;
}

const char *libra_code_name(int code)
{
	for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
		if (codes[i].code == code)
			return codes[i].name;
	return "UNKNOWN";
}

const char *libra_code_text(int code)
{
	for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
		if (codes[i].code == code)
			return codes[i].text;
	return "this version of the library does not know the code: update it";
}

const struct libra_error *libra_last_error(void)
{
	return &last;
}

/* error_new replaces the last failure of the thread by a new one without a text. */
struct libra_error *error_new(int code)
{
	memset(&last, 0, sizeof last);
	last.code = code;
	return &last;
}

/* error_set sets a failure without details and returns its code. */
int error_set(int code, const char *format, ...)
{
	va_list args;

	/* The arguments may point into the previous text. */
	char text[sizeof last.text];
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	memcpy(error_new(code)->text, text, sizeof text);
	return code;
}

/* clean_text copies at most `length` bytes of the agent's text, without control characters. */
void clean_text(char *to, size_t room, const char *from, size_t length)
{
	size_t i;

	for (i = 0; i + 1 < room && i < length && from[i]; i++)
		to[i] = (unsigned char)from[i] < ' ' || from[i] == 0x7f ? '?' : from[i];
	to[i] = 0;
}
