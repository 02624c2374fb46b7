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
	{LIBRA_BAD_HELLO, "BAD_HELLO", "the first message is not a HELLO: report this"},
	{LIBRA_VERSIONS, "VERSION",
	 "library and agent have no version of the protocol in common: upgrade the older one"},
	{LIBRA_FEATURES, "FEATURES", "the agent lacks a feature that the library needs: update the agent"},
	{LIBRA_NO_JOB, "NO_JOB", "the agent serves no job of this name: see its configuration"},
	{LIBRA_NOT_ALLOWED, "NOT_ALLOWED",
	 "this user may not use the job: add the user or a group of it to the job in the agent's configuration"},
	{LIBRA_DIMENSION, "DIMENSION",
	 "the rows of the job have a different number of gradients: libra_info tells it"},
	{LIBRA_HOT_SET, "HOT_SET", "the job's hot set differs: use the job's file"},
	{LIBRA_MEMORY, "MEMORY", "more memory than the configuration grants: ask for less, or raise the limit"},
	{LIBRA_CLIENTS, "CLIENTS",
	 "the job has as many clients as the configuration allows: end one, or raise the limit"},
	{LIBRA_PARTIES, "PARTIES",
	 "the other clients of the job gave a different number of parties, or all parties have joined, or one "
	 "has left: "
	 "start all of them anew"},
	{LIBRA_JOB_ENDED, "JOB_ENDED",
	 "the agent's part in the job has ended: the agent's log has the reason; open a session again when the "
	 "job runs"},
	{LIBRA_OWNED, "OWNED",
	 "the job has an owner already, or a parameter server, which owns it: end the other owner first, or open the job "
	 "without owning it"},
	{LIBRA_NOT_OPEN, "NOT_OPEN",
	 "the agent could not open the job of a range: start its owner first, or do what the text of the refusal says, and "
	 "try again"},
	{LIBRA_NOT_FINITE, "NOT_FINITE",
	 "a gradient is NaN or infinite: look where it comes from; clipping and a lower learning rate often help"},
	{LIBRA_OUT_OF_RANGE, "OUT_OF_RANGE",
	 "a gradient is out of the range of the job's arithmetic: send smaller numbers"},
	{LIBRA_NO_BATCH, "NO_BATCH",
	 "no prepared batch has this handle and number of keys: prepare it in this session, and do not release "
	 "it before"},
	{LIBRA_MODE, "MODE",
	 "the job's mode has no such request: sums in answers need mode fetchadd, reduce needs job.sync"},
	{LIBRA_REFUSED, "REFUSED", "the aggregator or the parameter server refused a frame"},
	{LIBRA_BAD_ANSWER, "BAD_ANSWER",
	 "the aggregator or the parameter server gave an invalid answer: run the same version of Libra on all hosts"},
	{LIBRA_PARTY_GONE, "PARTY_GONE",
	 "another client of this host that took part in the barrier has ended: start all of them anew"},
	{LIBRA_BAD_STEP, "BAD_STEP", "the barrier's step is not the one that is due"},
	{LIBRA_NO_PARTY, "NO_PARTY", "the session takes no part in barriers: set options.parties"},
	{LIBRA_DROPPED, "DROPPED",
	 "the step was dropped for all: gradients in it were refused, which the session that pushed them is told, or a "
	 "session that had pushed in it ended before its end, or the agent of a host has died; the others may push theirs again"},
	{LIBRA_NO_SUMS, "NO_SUMS",
	 "no libra_reduce or libra_harvest of this session returned sums, or they do not contain these rows: call it first"},
	{LIBRA_NO_WEIGHTS, "NO_WEIGHTS",
	 "the job keeps no weights to pull: give it an optimizer, adagrad or sgd (model.optimizer of the cluster file, "
	 "--optimizer of libra run)"},
	{LIBRA_NOT_OWNER, "NOT_OWNER",
	 "only the owner of a job gets its harvests: set options.owner, for a job of a range of the agent"},
	{LIBRA_NO_SERVER, "NO_SERVER",
	 "the job has no parameter server, which takes cold rows and answers pulls: push rows of the hot set only"},
	{LIBRA_AGENT_CLOSED, "AGENT_CLOSED", "the agent was stopped: open a session with its successor"},
	{LIBRA_BAD_ENTRY, "BAD_ENTRY", "the agent found an entry that breaks the protocol: report this"},
	{LIBRA_BAD_INDEX, "BAD_INDEX",
	 "the agent found that an index of a ring jumped: report this, unless the program writes into the "
	 "session's memory"},
	{LIBRA_WAKE_FLOOD, "WAKE_FLOOD",
	 "the agent was woken far more often than requests were submitted: report this"},
	{LIBRA_AGGREGATOR_LOST, "AGGREGATOR_LOST",
	 "the aggregator was stopped, or restarted, or cannot be reached any more, and the sums that no harvest had are "
	 "lost: begin anew when it runs"},
	{LIBRA_NO_AGENT, "NO_AGENT",
	 "no agent can be reached at the socket: is libra agent running on this host?"},
	{LIBRA_AGENT_DIED, "AGENT_DIED", "the agent has died: open a session with its successor"},
	{LIBRA_FORKED, "FORKED", "the session belongs to the parent process: open another one after fork"},
	{LIBRA_TIMEOUT, "TIMEOUT", "the time is over"},
	{LIBRA_USAGE, "USAGE", "an argument is wrong"},
	{LIBRA_NO_MEMORY, "NO_MEMORY", "the system has no more memory for this process"},
	{LIBRA_TOO_LARGE, "TOO_LARGE",
	 "the request cannot fit the session's buffers: ask for more buffer_bytes"},
	{LIBRA_PROTOCOL, "PROTOCOL",
	 "the agent broke the protocol: run the same version of Libra everywhere, and report this"},
	{LIBRA_SYSTEM, "SYSTEM", "a system call failed"},
	{LIBRA_CLOSED, "CLOSED", "the session was shut down by this program"},
	{LIBRA_MALFORMED, "MALFORMED", "the bytes are not an encoding of this number of values"},
};

/* The wire's codes of ERROR frames, with what can be done. */
static const struct {
	int code;
	const char *text, *remedy;
} refusals[] = {
	{1, "unknown job",
	 ": the job has ended, or this is the address of another: start this process again"},
	{2, "sender not admitted to the job",
	 ": its admission has ended, for example while it was stopped: start it again"},
	{3, "slot out of the job's range",
	 ": use the job's hot set"},
	{4, "wrong epoch",
	 ": the receiver has admitted the sender anew, or was restarted: start this process again"},
	{5, "unsupported protocol version",
	 ": run the same version of Libra on all hosts"},
	{6, "NaN or infinity",
	 ": send finite numbers"},
	{7, "value or sum out of range",
	 ": sums of exact arithmetic must stay below 2^(63+exponent) in size, 2^17 by default: send smaller numbers"},
	{8, "body length not accepted",
	 ": run the same version of Libra on all hosts, with the same switch.stripes"},
	{9, "operation not supported by the job's mode",
	 ": sums in answers need a job of mode fetchadd, rounds one of mode sync"},
	{10, "stripe layout not accepted",
	 ": send what the switch takes: lane-aligned frames (switch.lane_aligned)"},
	{11, "row dimension differs from the job's",
	 ": use the job's model and hot set on all hosts"},
	{12, "frame type not served here",
	 ": is it the address of an aggregator or server, and of the same version of Libra?"},
	{13, "round is not the one in progress",
	 ": the workers are not at the same round: start all of them again"},
	{14, "sequence number beyond the window",
	 ": start this process again"},
	{15, "no room for another row",
	 ": raise server.max_rows, or train with fewer features"},
	{16, "row numbers of another server",
	 ": the server was restarted: start this process again"},
	{17, "row number beyond the server's rows",
	 ": the server was restarted: start this process again"},
	{18, "no sums of this step in frames: ask the control service",
	 ""},
	{19, "the job keeps no weights: give it an optimizer (model.optimizer)",
	 ""},
	{20, "the job has no codec",
	 ": give the server the worker's cluster file (codec.bound, codec.scale), and run the same version of Libra on "
	 "all hosts"},
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

/* refusal_text returns why a frame was refused. */
const char *refusal_text(int refusal)
{
	for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
		if (refusals[i].code == refusal)
			return refusals[i].text;
	return "a reason that this version of the library does not know";
}

/* refusal_remedy returns what can be done about it. */
const char *refusal_remedy(int refusal)
{
	for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
		if (refusals[i].code == refusal)
			return refusals[i].remedy;
	return ": update it";
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
