/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layouts of docs/agent.md, version 1: handshake, shared memory, entries, completions.
 */
#ifndef LIBRA_PROTOCOL_H
#define LIBRA_PROTOCOL_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the protocol is little-endian, and an agent does not start on a host of the other byte order"
#endif

#define PROTOCOL_VERSION 1
#define MAGIC 0x4152424cu
#define MEMORY_MAGIC 0x315447414152424cull
#define PAGE 4096u
#define MIN_ENTRIES 8u
#define MAX_ENTRIES 65536u
#define FEATURE_HARVEST 1u
#define DEFAULT_SOCKET "/run/libra/agent.sock"

struct hello {
	uint32_t magic;
	uint16_t oldest, newest;
	uint64_t features;
	uint32_t entries;
	uint32_t dim;
	uint64_t buffer_bytes;
	uint32_t parties;
	uint32_t owner;
	uint8_t zero[24];
	char job[64];
	char client[32];
	uint8_t hot_set[32];
};
static_assert(sizeof(struct hello) == 192, "HELLO");
static_assert(offsetof(struct hello, parties) == 32 && offsetof(struct hello, hot_set) == 160, "HELLO");

struct welcome {
	uint32_t magic;
	uint32_t code;
	uint16_t version;
	uint16_t job;
	uint8_t mode;
	uint8_t arithmetic;
	uint16_t zero1;
	uint64_t features;
	uint32_t dim;
	int32_t exponent;
	uint32_t hot_rows;
	uint32_t client;
	uint32_t agent_pid;
	uint32_t zero2;
	uint64_t instance;
	uint64_t next_step;
	uint64_t memory_bytes;
	uint64_t sq_offset, cq_offset;
	uint64_t buffer_offset, buffer_bytes;
	uint32_t entries;
	uint32_t zero3;
	uint64_t prepared_bytes;
	uint8_t zero4[40];
	uint8_t hot_set[32];
	uint8_t zero5[64];
};
static_assert(sizeof(struct welcome) == 256, "WELCOME");
static_assert(offsetof(struct welcome, prepared_bytes) == 112 && offsetof(struct welcome, hot_set) == 160, "WELCOME");

struct refused {
	uint32_t magic;
	uint32_t code;
	uint16_t oldest, newest;
	uint32_t zero;
	char text[496];
};
static_assert(sizeof(struct refused) == 512, "REFUSED");

/* The header of the shared memory. Words that both sides use have their own cache lines. */
struct header {
	uint64_t magic;
	_Alignas(64) _Atomic uint32_t sq_tail;
	_Alignas(64) _Atomic uint32_t sq_head;
	_Alignas(64) _Atomic uint32_t cq_tail;
	_Alignas(64) _Atomic uint32_t cq_head;
	_Alignas(64) _Atomic uint32_t agent_sleeps;
	_Alignas(64) _Atomic uint32_t client_sleeps;
	_Alignas(64) _Atomic uint32_t end_code;
	_Alignas(64) char end_text[512];
};
static_assert(offsetof(struct header, sq_tail) == 64 && offsetof(struct header, end_text) == 512, "header");

struct entry {
	uint8_t op;
	uint8_t zero1[3];
	uint32_t dim;
	uint64_t tag;
	uint64_t batch;
	uint64_t keys;
	uint64_t values;
	uint64_t sums;
	uint32_t n;
	uint32_t zero2;
	uint64_t step;
};
static_assert(sizeof(struct entry) == 64 && offsetof(struct entry, step) == 56, "entry");

enum op { PUSH = 1, PULL, PUSH_SUMS, FLUSH, BARRIER, PREPARE, RELEASE, STATS, REDUCE, SUMS, HARVEST };

/* The step of a HARVEST that does not wait. */
#define NOW 1u

struct completion {
	uint64_t tag;
	uint32_t status;
	uint8_t op;
	uint8_t peer;
	uint16_t refusal;
	uint64_t ticket;
	uint64_t detail;
	uint64_t key;
	uint8_t key_known;
	uint8_t zero1[7];
	uint32_t acknowledged, refused, unknown;
	uint32_t zero2;
};
static_assert(sizeof(struct completion) == 64 && offsetof(struct completion, acknowledged) == 48, "completion");

#endif
