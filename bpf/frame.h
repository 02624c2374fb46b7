/* Frame layouts. Go's package wire is their reference.
 *
 * All structs are naturally aligned, not packed: clang reads the fields of a
 * packed struct byte by byte. Frames begin at an address that is only even, but
 * on amd64 and arm64 a program may read unaligned words. */
#pragma once
// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "bounds.h"
#include "kernel.h"

#define ETHER_IPV4 0x0800
#define ETHER_IPV6 0x86dd
#define ETHER_VLAN 0x8100
#define PROTO_UDP 17

#define IPV4_PLAIN_HEADER 0x45 /* version 4, five words: no options */
#define IPV4_FRAGMENT 0x3fff   /* more-fragments bit and fragment offset */
#define IPV4_DONT_FRAGMENT 0x4000
#define HOP_LIMIT 64

#define VERSION 1
#define LANE_MASK ((1U << LANES) - 1)

enum type {
	TYPE_HOT = 1,
	TYPE_ACK = 5,
	TYPE_ERROR = 6,
	TYPE_SCALE = 7,
	TYPE_TAKEN = 13,
};

enum flag {
	FLAG_WANT_SUM = 1 << 1,
	FLAG_DENSE = 1 << 2,
	FLAG_SUM = 1 << 3,
	FLAG_ALL = 1 << 4,
	FLAG_SCALE = 1 << 5,
	FLAG_QUIET = 1 << 6,
	FLAG_TAKEN = FLAG_QUIET, /* of an ACK */
	FLAG_COVER = 1 << 7,
};

enum code {
	CODE_UNKNOWN_JOB = 1,
	CODE_UNKNOWN_SENDER = 2,
	CODE_SLOT_RANGE = 3,
	CODE_WRONG_EPOCH = 4,
	CODE_WRONG_VERSION = 5,
	CODE_NOT_FINITE = 6,
	CODE_OVERFLOW = 7,
	CODE_LENGTH = 8,
	CODE_MODE = 9,
	CODE_LAYOUT = 10,
	CODE_TYPE = 12,
	CODE_ROUND = 13,
};

struct ethernet {
	__u16 dst[3];
	__u16 src[3];
	__be16 proto;
};

struct vlan {
	__be16 tci;
	__be16 proto;
};

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 total;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 proto;
	__u16 check;
	__be32 src;
	__be32 dst;
};

struct ipv6 {
	__u8 version_class;
	__u8 class_flow[3];
	__be16 length;
	__u8 next;
	__u8 hops;
	__be32 src[4];
	__be32 dst[4];
};

struct udp {
	__be16 src;
	__be16 dst;
	__be16 length;
	__u16 check;
};

struct header {
	__u8 version_type;
	__u8 flags;
	__be16 job;
	__be16 sender;
	__be16 epoch;
	__be32 seq;
};

struct stripe {
	__be32 mask;
	__be32 bits[LANES];
	__be16 slots[LANES];
};

struct refusal {
	__be16 code;
	__be16 index;
	__be32 value;
};

/* Body of a SCALE frame, and of the decision that answers it. */
struct report {
	__be32 iteration;
	__u8 exponent;
	__u8 unused[3];
};

/* Body of a TAKEN frame, and of the ACK that confirms it. */
struct taken {
	__be16 first;
	__be16 unused;
	__be32 round;
};

/* Body of an ACK with FLAG_COVER: bit i stands for frame seq + COVER_AHEAD - i,
 * or in a job with rounds for the sender at position i. */
struct cover {
	__be64 frames;
};

/* The part of a frame for the aggregator after the Ethernet header. */
struct packet {
	struct ipv4 ip;
	struct udp udp;
	struct header header;
};

#define HEADER_LEN sizeof(struct header)
#define STRIPE_LEN sizeof(struct stripe)
#define ENVELOPE_LEN (sizeof(struct ipv4) + sizeof(struct udp))
#define ERROR_LEN (HEADER_LEN + sizeof(struct refusal))
#define COVER_LEN (HEADER_LEN + sizeof(struct cover))
#define SCALE_LEN (HEADER_LEN + sizeof(struct report))
#define TAKEN_LEN (HEADER_LEN + sizeof(struct taken))
