/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libra.h - push gradients to Libra and pull rows from a C or C++ program
 *
 * A host runs one Libra agent (`libra agent`). A program opens a session with the agent and passes
 * gradients to it through shared memory:
 *
 *	struct libra_options options = LIBRA_OPTIONS;
 *	struct libra_session *session;
 *
 *	options.job = "ads";
 *	if (libra_open(&session, &options) != LIBRA_OK)
 *		fprintf(stderr, "%s\n", libra_last_error()->text);
 *	libra_push(session, keys, gradients, n, NULL);
 *	libra_flush(session, NULL);
 *	libra_pull(session, keys, rows, n, NULL);
 *	libra_close(session);
 *
 * KEYS AND ROWS. A key names a row of `dim` floats; the job defines `dim`, see struct libra_info.
 * Gradients, sums and rows are n * dim floats, row by row in the order of the keys.
 *
 * TICKETS. The last argument of each request is `ticket`. If it is a pointer, the function submits
 * the request and returns at once; libra_wait takes the ticket and returns the result. Wait for
 * each ticket once: until then its memory stays in use. If it is NULL, libra_push, libra_push_batch
 * and libra_release also return at once, and the next libra_flush reports a failure; all other
 * functions wait for the result.
 *
 * MEMORY. The caller's arrays are copied once, into the session's buffers, before the function
 * returns, and libra_wait copies results out of them. Arrays from libra_alloc are already in the
 * buffers and are not copied. Do not change keys and gradients in them until libra_accepted returns
 * 1, and do not use arrays for results until libra_wait has returned.
 *
 * ERRORS. Functions return LIBRA_OK, which is 0, or a positive enum libra_code. libra_last_error
 * then gives a text with the cause, the place and the remedy.
 *
 * WAITING. A function that waits for the agent sleeps in poll(2). It continues after signals, and
 * returns at once when the agent dies for any reason. A call that does not wait notices the death
 * within a second.
 *
 * STOPPED AGENTS. An agent that is stopped, perhaps to be started again at once, ends its sessions with
 * LIBRA_AGENT_CLOSED: open another one. Each push counts wholly or not at all; one for which
 * libra_accepted had returned 1 counts. After LIBRA_AGENT_DIED only acknowledged ones are sure to.
 *
 * THREADS. Any number of threads may use one session, but libra_close must be the last call. The
 * library creates no threads and sets no signal handlers.
 *
 * FORK. A session belongs to the process that opened it. In a child after fork(2) every function
 * returns LIBRA_FORKED, and arrays from libra_alloc are not mapped. The parent's session continues.
 * The child may open its own session.
 */
#ifndef LIBRA_H
#define LIBRA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LIBRA_VERSION "0.1.0" /* of the release of Libra; libra.so.1 is the version of the interface */

#if defined(__GNUC__)
#define LIBRA_API __attribute__((visibility("default")))
#else
#define LIBRA_API
#endif

/* Codes of all functions. Those below 256 come from the agent. */
enum libra_code {
	LIBRA_OK = 0,

	/* libra_open */
	LIBRA_BAD_HELLO = 1,    /* the first message is not a HELLO */
	LIBRA_VERSIONS = 2,     /* library and agent have no protocol version in common */
	LIBRA_FEATURES = 3,     /* the agent lacks a feature that the library needs */
	LIBRA_NO_JOB = 4,       /* the agent serves no job of this name */
	LIBRA_NOT_ALLOWED = 5,  /* this user may not use the job */
	LIBRA_DIMENSION = 6,    /* the job's rows have a different number of floats */
	LIBRA_HOT_SET = 7,      /* the job has a different hot set */
	LIBRA_MEMORY = 8,       /* more memory than the agent's configuration allows (requests, too) */
	LIBRA_CLIENTS = 9,      /* the job has the maximum number of clients of the agent's configuration */
	LIBRA_PARTIES = 10,     /* the parties of the job's barriers do not agree */
	LIBRA_JOB_ENDED = 11,   /* the agent's part in the job has ended (requests, too) */
	LIBRA_OWNED = 12,       /* the job has an owner already, or a parameter server */
	LIBRA_NOT_OPEN = 13,    /* the agent could not open the job: it may have no owner yet */

	/* requests */
	LIBRA_NOT_FINITE = 32,   /* a gradient is NaN or infinite: `index`, `key` */
	LIBRA_OUT_OF_RANGE = 33, /* a gradient is out of the arithmetic's range: `index`, `key` */
	LIBRA_NO_BATCH = 34,     /* no prepared batch has this handle */
	LIBRA_MODE = 35,         /* the job's mode does not support the request */
	LIBRA_REFUSED = 36,      /* `peer` refused a frame with the wire's code `refusal`, or the end of a step (0) */
	LIBRA_BAD_ANSWER = 37,   /* `peer` sent an invalid answer */
	LIBRA_PARTY_GONE = 38,   /* another party of the barrier has ended */
	LIBRA_BAD_STEP = 39,     /* the barrier's step is not the current one */
	LIBRA_NO_PARTY = 40,     /* options.parties was 0, so the session has no barriers */
	LIBRA_DROPPED = 41,      /* gradients of the step were refused, here or elsewhere: `key`; or a party or an agent
				  * has ended; or a sum is too large for a float32: `key`, with `refusal` 7 */
	LIBRA_NO_SUMS = 42,      /* there are no sums of a libra_reduce, or not of these rows */
	LIBRA_NO_WEIGHTS = 43,   /* the job has no optimiser: there are sums of steps, but no weights to pull */
	LIBRA_NOT_OWNER = 44,    /* options.owner was 0, so the session has no harvests */
	LIBRA_NO_SERVER = 45,    /* the job has no parameter server: no pulls, and no rows outside the hot set (`key`) */

	/* the agent has ended the session */
	LIBRA_AGENT_CLOSED = 64, /* the agent was stopped */
	LIBRA_BAD_ENTRY = 65,    /* the library broke the protocol: report this */
	LIBRA_BAD_INDEX = 66,    /* likewise, or the program wrote into the session's memory */
	LIBRA_WAKE_FLOOD = 67,   /* likewise */
	LIBRA_AGGREGATOR_LOST = 68,  /* the aggregator of a job without a parameter server was lost (requests, too) */

	/* the library itself */
	LIBRA_NO_AGENT = 256,    /* no agent listens at the socket, or access to it is denied */
	LIBRA_AGENT_DIED = 257,  /* the agent's process ended without closing the session */
	LIBRA_FORKED = 258,      /* the session belongs to the parent of this process */
	LIBRA_TIMEOUT = 259,     /* the timeout has expired; a ticket remains valid */
	LIBRA_USAGE = 260,       /* an argument is wrong; nothing was submitted */
	LIBRA_NO_MEMORY = 261,   /* malloc or mmap failed */
	LIBRA_TOO_LARGE = 262,   /* the request cannot fit the session's buffers */
	LIBRA_PROTOCOL = 263,    /* the agent broke the protocol: report this */
	LIBRA_SYSTEM = 264,      /* a system call failed */
	LIBRA_CLOSED = 265,      /* libra_shutdown has ended the session */
	LIBRA_MALFORMED = 266    /* libra_decode: not the codes of this number of values: `index` */
};

enum libra_mode { LIBRA_COMBINE = 0, LIBRA_FETCHADD = 1, LIBRA_SYNC = 2 };
enum libra_arithmetic { LIBRA_EXACT = 0, LIBRA_LUT = 1, LIBRA_FIXED = 2 };
enum libra_peer { LIBRA_PEER_NONE = 0, LIBRA_PEER_AGGREGATOR = 1, LIBRA_PEER_SERVER = 2 };

/* struct libra_error - the last failure of a call in the calling thread */
struct libra_error {
	int code;            /* enum libra_code */
	int peer;            /* enum libra_peer: whose refusal or answer it is */
	int refusal;         /* LIBRA_REFUSED: the code of the ERROR frame, or 0; LIBRA_DROPPED: 7 or 0 */
	int key_known;       /* 1 if `key` is set */
	uint64_t key;        /* the key concerned */
	uint64_t index;      /* LIBRA_NOT_FINITE, LIBRA_OUT_OF_RANGE: index of the gradient, from 0; LIBRA_MALFORMED: of the byte;
			      * LIBRA_PARTY_GONE: info.client of the client that left first, 0 if not known */
	uint32_t acknowledged; /* frames of a failed push that were applied */
	uint32_t refused;      /* frames that were not applied */
	uint32_t unknown;      /* frames for which it is not known */
	char text[640];      /* the cause, the place and the remedy */
};

/*
 * struct libra_options - arguments of libra_open. Initialise it with LIBRA_OPTIONS, which sets
 * `size`, so that later versions can add fields, and everything else to zero.
 */
struct libra_options {
	size_t size;            /* sizeof(struct libra_options) */
	const char *socket;     /* path of the agent's socket; NULL: $LIBRA_AGENT, or /run/libra/agent.sock */
	const char *job;        /* name of the job in the agent's configuration, up to 63 bytes */
	const char *client;     /* name of this program in the agent's statistics, up to 31 bytes; may be NULL */
	const uint8_t *hot_set; /* SHA-256 of the expected hot set; NULL: any */
	uint64_t buffer_bytes;  /* memory for pending requests and libra_alloc; 0: 8 MiB */
	uint32_t entries;       /* pending requests, a power of two from 8 to 65536; 0: 256 */
	uint32_t dim;           /* expected floats in a row; 0: any */
	uint32_t parties;       /* sessions of this host that meet at barriers; 0: no barriers */
	uint32_t spin_us;       /* microseconds to poll for an answer before sleeping, while that saves time; 0: 400, 1: next to none */
	int32_t open_ms;        /* limit for libra_open in milliseconds; 0: 5000 */
	int32_t room_ms;        /* limit for a request that waits for buffer space, in milliseconds; 0: none */
	int32_t owner;          /* 1: create the job, own it, and take its sums by libra_harvest; 0: do not */
	int32_t zero;           /* 0 */
};

#ifdef __cplusplus
#define LIBRA_OPTIONS \
	{ sizeof(struct libra_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#else
#define LIBRA_OPTIONS { .size = sizeof(struct libra_options) }
#endif

/* struct libra_info - the job and the session */
struct libra_info {
	uint32_t dim;            /* floats in a row */
	int mode;                /* enum libra_mode */
	int arithmetic;          /* enum libra_arithmetic */
	int exponent;            /* one unit of an exact or fixed sum is 2^exponent */
	uint32_t hot_rows;       /* rows in the hot set */
	uint8_t hot_set[32];     /* its SHA-256 */
	uint32_t job;            /* number of the job on the wire */
	uint32_t client;         /* number of this client in the agent's logs */
	uint32_t agent_pid;      /* the agent's PID in its own PID namespace */
	uint32_t entries;        /* requests that may be pending */
	uint64_t buffer_bytes;   /* memory for requests and libra_alloc */
	uint64_t prepared_bytes; /* limit of memory for prepared batches */
	uint64_t instance;       /* random number of this run of the agent */
};

/* struct libra_statistics - counters of the session; those with the prefix job_ or step_ belong to the
 * job on this host */
struct libra_statistics {
	uint64_t pushes_accepted;
	uint64_t pushes_acknowledged;
	uint64_t pushes_failed;
	uint64_t keys_pushed;
	uint64_t pulls;
	uint64_t keys_pulled;
	uint64_t bytes_read;       /* from the session's buffers, by the agent */
	uint64_t prepared_bytes;   /* used by prepared batches */
	uint64_t wakes_of_agent;   /* sent by the library */
	uint64_t wakes_of_client;  /* sent by the agent */
	uint64_t job_frames_sent;
	uint64_t job_frames_repeated;
	uint64_t job_aggregator_rtt_ns;
	uint64_t job_server_rtt_ns;
	uint64_t step_arrived; /* parties of this host that have reached the end of the current step */
	uint64_t step_parties; /* their total; if all have arrived, the host waits for other hosts */
};

struct libra_session;

/* A ticket names a submitted request; it is never 0. */
typedef uint64_t libra_ticket;

/* struct libra_batch - keys that the agent has looked up and keeps, see libra_prepare */
struct libra_batch {
	uint64_t handle;
	uint64_t n;
};

/*
 * libra_version - version of the loaded library; LIBRA_VERSION is the header's version
 */
LIBRA_API const char *libra_version(void);

/*
 * libra_code_name - the name of a code without its prefix, such as "NO_JOB"; "UNKNOWN" for others
 * libra_code_text - a description of a code
 */
LIBRA_API const char *libra_code_name(int code);
LIBRA_API const char *libra_code_text(int code);

/*
 * libra_last_error - the last failure of a call in this thread
 *
 * Never NULL. Valid until the thread's next call that fails; calls that succeed do not change it.
 */
LIBRA_API const struct libra_error *libra_last_error(void);

/*
 * libra_open - open a session with the agent of this host
 *
 * On success *session is the session, otherwise NULL. A session has a socket, which exec(2) closes,
 * and a memory mapping.
 *
 * Jobs without a parameter server have names such as "hot/3". They begin with the session that
 * opens them with options.owner, and end with it, for all sessions on all hosts (LIBRA_JOB_ENDED).
 * Others get LIBRA_NOT_OPEN until there is an owner; the owner too, while the lease of an earlier one runs
 * whose agent or host has died: try again.
 *
 * Errors: LIBRA_NO_AGENT, LIBRA_TIMEOUT, LIBRA_USAGE, LIBRA_NO_MEMORY, LIBRA_PROTOCOL,
 * LIBRA_SYSTEM, and the agent's refusals: LIBRA_BAD_HELLO to LIBRA_NOT_OPEN.
 */
LIBRA_API int libra_open(struct libra_session **session, const struct libra_options *options);

/*
 * libra_info - job and session; valid until libra_close, also in a forked child
 */
LIBRA_API const struct libra_info *libra_info(const struct libra_session *session);

/*
 * libra_close - wait until the agent has answered all pushes, then free the session
 *
 * Returns the failure of the first push that failed since the last libra_flush, or the reason why
 * the session had ended. In either case it frees the session, its tickets, batches and arrays. No
 * other call may be in progress. A new session may be opened at once in its place. If the agent is
 * stopped (SIGSTOP), libra_close waits 10 seconds. NULL is allowed. In a forked child it frees only
 * the child's part and returns LIBRA_OK.
 */
LIBRA_API int libra_close(struct libra_session *session);

/*
 * libra_shutdown - end the session at once, without waiting
 *
 * Pushes that the agent has not accepted yet may be lost: call libra_flush first. Calls waiting in
 * other threads and all later calls return LIBRA_CLOSED. Arrays from libra_alloc remain until
 * libra_close.
 */
LIBRA_API int libra_shutdown(struct libra_session *session);

/*
 * libra_alloc - an array in the session's buffers, which requests use without a copy libra_free -
 * free such an array, after all requests that use it have been waited for. NULL is allowed
 *
 * The array is aligned to 64 bytes and not cleared. NULL if the buffers have too little space, or
 * after fork(2). It leaves less space for copies of other arrays: set buffer_bytes accordingly.
 */
LIBRA_API void *libra_alloc(struct libra_session *session, size_t bytes);
LIBRA_API void libra_free(struct libra_session *session, void *array);

/*
 * libra_push - add gradients to rows
 *
 * keys[n], gradients[n * dim]. Complete when the aggregator and the server have acknowledged all of
 * them. A push with a gradient that is not finite or out of range fails as a whole. A key may occur
 * more than once. If the program dies, each of its pushes is applied wholly or not at all. n may be
 * 0.
 *
 * Waits for buffer space for the request, up to options.room_ms.
 *
 * Errors: LIBRA_TOO_LARGE, LIBRA_TIMEOUT (nothing was submitted), LIBRA_USAGE, LIBRA_FORKED, and
 * those of an ended session. For the ticket or the flush: LIBRA_NOT_FINITE, LIBRA_OUT_OF_RANGE,
 * LIBRA_REFUSED, LIBRA_BAD_ANSWER, LIBRA_MODE, LIBRA_JOB_ENDED.
 */
LIBRA_API int libra_push(struct libra_session *session, const uint64_t *keys, const float *gradients, size_t n,
			 libra_ticket *ticket);

/*
 * libra_push_sums - push in a job in fetchadd mode and get the sums after the addition
 *
 * sums[n * dim] receives the sums of hot rows; those of cold rows are not changed. `sums` may be
 * `gradients`. Errors: those of libra_push.
 */
LIBRA_API int libra_push_sums(struct libra_session *session, const uint64_t *keys, const float *gradients,
			      float *sums, size_t n, libra_ticket *ticket);

/*
 * libra_pull - read rows from the parameter server
 *
 * keys[n], rows[n * dim]. The rows include all pushes that an earlier libra_flush or libra_barrier
 * has waited for, in a job whose steps end by time from the end of their step on. On failure
 * `rows` is not changed, unless it is from libra_alloc.
 */
LIBRA_API int libra_pull(struct libra_session *session, const uint64_t *keys, float *rows, size_t n,
			 libra_ticket *ticket);

/*
 * libra_prepare - make the agent look up keys once for many pushes and pulls
 *
 * *batch is set when the request is complete. The batch takes 512 + 16 * n + 8 * n * dim bytes of
 * info.prepared_bytes, until libra_release. Errors of the request: LIBRA_MEMORY, LIBRA_JOB_ENDED.
 */
LIBRA_API int libra_prepare(struct libra_session *session, const uint64_t *keys, size_t n,
			    struct libra_batch *batch, libra_ticket *ticket);

/*
 * libra_release - free a prepared batch; earlier requests for it may still be pending
 */
LIBRA_API int libra_release(struct libra_session *session, const struct libra_batch *batch, libra_ticket *ticket);

/*
 * libra_push_batch, libra_push_sums_batch, libra_pull_batch - the same with a prepared batch in place of keys
 *
 * Also fail with LIBRA_NO_BATCH.
 */
LIBRA_API int libra_push_batch(struct libra_session *session, const struct libra_batch *batch,
			       const float *gradients, libra_ticket *ticket);
LIBRA_API int libra_push_sums_batch(struct libra_session *session, const struct libra_batch *batch,
				    const float *gradients, float *sums, libra_ticket *ticket);
LIBRA_API int libra_pull_batch(struct libra_session *session, const struct libra_batch *batch, float *rows,
			       libra_ticket *ticket);

/*
 * libra_flush - wait for all earlier pushes of this session
 *
 * Returns the failure of the first push that failed since the last libra_flush, with or without a
 * ticket.
 */
LIBRA_API int libra_flush(struct libra_session *session, libra_ticket *ticket);

/*
 * libra_barrier - wait for the other parties of the host and the other hosts of the job
 *
 * Waits also for the acknowledgement of all earlier pushes of all parties, and returns when the
 * server has committed the step. The library counts the steps. Errors: LIBRA_PARTY_GONE,
 * LIBRA_BAD_STEP, LIBRA_NO_PARTY, LIBRA_REFUSED if the other hosts did not arrive, LIBRA_DROPPED if
 * the step was dropped, LIBRA_JOB_ENDED.
 *
 * A push that follows, of any thread, belongs to the next step, also before this request is complete:
 * then it waits for that in the session's buffers, as do all requests after it. Do not make another
 * party wait for such a push before its own barrier.
 */
LIBRA_API int libra_barrier(struct libra_session *session, libra_ticket *ticket);

/*
 * libra_reduce - end a step like libra_barrier, and get the sums of all workers' pushes in it
 *
 * *rows is the number of rows with sums in the step. keys[n] and sums[n * dim] receive the first n
 * of them; libra_sums copies the rest. n may be 0 and the arrays NULL. The rows are the same, bit
 * for bit, for all sessions that reduce, on all hosts: each sum is the float nearest to the exact
 * one (in a job with an optimiser, of gradients that are rounded to multiples of 2^-46 or of the job's
 * unit), and rows whose sums are all zero are left out. If a sum is too large for a float, or
 * gradients of any of these sessions were refused since its last libra_flush or libra_reduce, the step
 * changes nothing, and all sessions get LIBRA_DROPPED with the key in `key`; the failure of the push
 * has the details. The next step may follow. Requires a job whose workers take steps together
 * (job.sync). Errors: LIBRA_DROPPED, LIBRA_MODE, LIBRA_REFUSED, LIBRA_TOO_LARGE, and those of libra_barrier.
 */
LIBRA_API int libra_reduce(struct libra_session *session, uint64_t *keys, float *sums, size_t n, uint64_t *rows,
			   libra_ticket *ticket);

/*
 * libra_harvest - get the sums of all pushes to a job that the session owns, since the harvest before
 *
 * *rows is the number of rows with sums. keys[n] receives the keys of the first n of them, in ascending
 * order, and sums[n * dim] their sums: each is the float nearest to the exact one. libra_sums copies the
 * rest; n = info.hot_rows is always enough. n may be 0 and the arrays NULL. Each push is in one
 * harvest, wholly or, if it took several frames, in several.
 *
 * Submitting the request acknowledges the harvest before, which the aggregator then clears. If `now` is
 * 0, the request completes with the next harvest that has sums, at the earliest the job's harvest
 * period after the one before. If it is 1, it does not wait for that: the harvest has all pushes that
 * were acknowledged to any session, on any host, before this call and are in no earlier harvest,
 * perhaps none. It also ends the waiting of earlier requests; all are answered in order. Without a
 * request there is no harvest: sums stay in the aggregator, and only one that exceeds the range of the
 * job's arithmetic makes a push fail (LIBRA_REFUSED).
 *
 * Sums that were not harvested when the session ends are lost. Errors: LIBRA_NOT_OWNER, LIBRA_JOB_ENDED,
 * LIBRA_TOO_LARGE.
 */
LIBRA_API int libra_harvest(struct libra_session *session, int now, uint64_t *keys, float *sums, size_t n,
			    uint64_t *rows, libra_ticket *ticket);

/*
 * libra_sums - copy rows of the session's last libra_reduce or libra_harvest
 *
 * keys[n] receives the keys of the rows from number `first` on, in ascending order, and sums[n * dim]
 * their sums. The rows are kept until the session's next libra_reduce or libra_harvest. Errors: LIBRA_NO_SUMS,
 * LIBRA_TOO_LARGE: copy fewer at a time.
 */
LIBRA_API int libra_sums(struct libra_session *session, uint64_t first, uint64_t *keys, float *sums, size_t n,
			 libra_ticket *ticket);

/*
 * libra_statistics - counters of session and job
 */
LIBRA_API int libra_statistics(struct libra_session *session, struct libra_statistics *statistics,
			       libra_ticket *ticket);

/*
 * libra_wait - wait for a request and take its result
 *
 * timeout_ms as in poll(2): -1 waits without limit, 0 does not wait. Returns the result of the
 * request, and the ticket becomes void, or LIBRA_TIMEOUT, and the ticket remains valid. Arrays for
 * results must exist until the result is returned.
 */
LIBRA_API int libra_wait(struct libra_session *session, libra_ticket ticket, int timeout_ms);

/*
 * libra_accepted - 1 if the agent has read the request's keys and gradients, else 0
 *
 * Also 1 if the ticket is void or the session has ended. It does not wait.
 */
LIBRA_API int libra_accepted(struct libra_session *session, libra_ticket ticket);

/*
 * libra_fd - a descriptor that becomes readable when requests may have completed, or -1
 * libra_process - call it when the descriptor is readable, then libra_wait(..., 0)
 *
 * The descriptor is for event loops. The library owns it: use it only with poll, select or epoll;
 * libra_close closes it. libra_process does not wait. It returns LIBRA_OK, or the reason why the
 * session has ended.
 */
LIBRA_API int libra_fd(struct libra_session *session);
LIBRA_API int libra_process(struct libra_session *session);

/*
 * LIBRA_CODED_MAX - bytes of the longest encoding of n values
 */
#define LIBRA_CODED_MAX(n) (((size_t)(n) + 63) / 64 + ((size_t)(n) + 7) / 8 * 2 + 4 * (size_t)(n))

/*
 * libra_encode - code values in 0, 1, 2 or 4 bytes each, with an error below 2^-(bound + scale)
 *
 * values[n], `bound` from 1 to 14, `scale` from -126 to 126. coded[room], with a room of at least
 * LIBRA_CODED_MAX(n), receives *bytes bytes; what is behind them may be overwritten. docs/codec.md describes
 * the format and when to use it. Needs no session, and neither do the next two. Errors: LIBRA_USAGE.
 */
LIBRA_API int libra_encode(int bound, int scale, const float *values, size_t n, uint8_t *coded, size_t room,
			   size_t *bytes);

/*
 * libra_decode - decode the n values that all of coded[bytes] encodes, with the bound and scale of libra_encode
 *
 * The bytes may come from anywhere. On failure values[n] is undefined. Results do not depend on the machine,
 * except that threads which treat subnormal numbers as zero lose those. Errors: LIBRA_MALFORMED with the
 * byte in `index`, LIBRA_USAGE.
 */
LIBRA_API int libra_decode(int bound, int scale, const uint8_t *coded, size_t bytes, float *values, size_t n);

/*
 * libra_fit - the scale that puts the largest finite magnitude of values[n] into [1/2, 1)
 *
 * 0 if all are zero or not finite; -126 or 126 if it would be beyond.
 */
LIBRA_API int libra_fit(const float *values, size_t n);

#ifdef __cplusplus
}
#endif

#endif
