// SPDX-License-Identifier: Apache-2.0

// What is on the wire (docs/wire.md).

const bit<16> ETHER_VLAN = 0x8100;
const bit<16> ETHER_IPV4 = 0x0800;
const bit<16> ETHER_IPV6 = 0x86dd;
const bit<8> PROTOCOL_UDP = 17;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header vlan_t {
    bit<16> tag;
    bit<16> type;
}

header ipv4_t {
    bit<8> version_ihl;
    bit<8> tos;
    bit<16> length;
    bit<16> id;
    bit<16> fragment; // flags and offset
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header ipv6_t {
    bit<4> version;
    bit<28> flow;
    bit<16> length;
    bit<8> next;
    bit<8> hop_limit;
    bit<128> src;
    bit<128> dst;
}

header udp_t {
    bit<16> src;
    bit<16> dst;
    bit<16> length;
    bit<16> checksum;
}

const bit<4> VERSION = 1;

const bit<4> TYPE_HOT = 1;
const bit<4> TYPE_ACK = 5;
const bit<4> TYPE_ERROR = 6;
const bit<4> TYPE_SCALE = 7;

const bit<8> FLAG_WANT_SUM = 0x02;
const bit<8> FLAG_DENSE = 0x04;
const bit<8> FLAG_SUM = 0x08;
@noWarn("unused") const bit<8> FLAG_ALL = 0x10;
@noWarn("unused") const bit<8> FLAG_SCALE = 0x20;

@noWarn("unused") const bit<16> ALL_SENDERS = 0xffff;

header libra_t {
    bit<4> version;
    bit<4> type;
    bit<8> flags;
    bit<16> job;
    bit<16> sender;
    bit<16> epoch;
    bit<32> seq;
}

#define NUMBER(j) bit<32> number##j;
#define SLOT(j) bit<16> slot##j;

header stripe_t {
    bit<10> beyond; // bits 22-31 of the mask
    bit<22> mask;
    LANE_FIELDS(NUMBER)
    LANE_FIELDS(SLOT)
}

#undef NUMBER
#undef SLOT

// The body of a SCALE, and of the ACK that has what was decided.
header scale_t {
    bit<32> iteration;
    bit<8> exponent;
    bit<24> zero;
}

// The body of an ERROR.
header refusal_t {
    bit<16> code;
    bit<16> index;
    bit<32> value;
}

// Codes of an ERROR. 0 is none.
const bit<4> CODE_NONE = 0;
const bit<4> CODE_UNKNOWN_JOB = 1;
const bit<4> CODE_UNKNOWN_SENDER = 2;
const bit<4> CODE_SLOT_RANGE = 3;
const bit<4> CODE_WRONG_EPOCH = 4;
const bit<4> CODE_WRONG_VERSION = 5;
@noWarn("unused") const bit<4> CODE_NOT_FINITE = 6;
@noWarn("unused") const bit<4> CODE_OVERFLOW = 7;
const bit<4> CODE_LENGTH = 8;
const bit<4> CODE_MODE = 9;
const bit<4> CODE_LAYOUT = 10;
const bit<4> CODE_TYPE = 12;
@noWarn("unused") const bit<4> CODE_ROUND = 13;
