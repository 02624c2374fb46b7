// SPDX-License-Identifier: Apache-2.0

// What v1model has beside the headers on the wire: bodies of any length, the control
// plane's packets, and lanes of 64 bits.

// Fields that resubmission preserves.
#define KEPT @field_list(1)

// The port that leads to the control plane, over P4Runtime's stream.
const bit<9> CPU_PORT = 510;

// A UDP payload of another length: it is read for its checksum only. A frame of 9,000
// bytes has up to 8,972 of them.
header body_t {
    varbit<71776> bytes;
}

// What the control plane sends into the pipeline: an operation on one row of all
// lanes' registers. It comes back with the row as it was before.
// Operations: 0 reads the row, 1 clears it, and its round; 2 forgets the scale of a job.
const bit<8> OPERATION_CLEAR = 1;
const bit<8> OPERATION_FORGET = 2;

@controller_header("packet_out")
header request_t {
    bit<8> operation;
    bit<32> number;
}

@controller_header("packet_in")
header response_t {
    bit<8> operation;
    bit<32> number;
}

#define VALUE(j) bit<64> value##j;

header row_t {
    LANE_FIELDS(VALUE)
}

#undef VALUE

struct headers_t {
    request_t request;
    response_t response;
    row_t row;
    ethernet_t ethernet;
    vlan_t vlan;
    ipv4_t ipv4;
    ipv6_t ipv6;
    udp_t udp;
    libra_t libra;
    scale_t scale;
    refusal_t refusal;
    stripe_t stripe;
    body_t body;
}

// What is known of a frame beside state_t.
#define PRIVATE \
    KEPT bit<9> from;   /* port: bmv2 has none for a frame that is resubmitted */ \
    bit<32> size;       /* of the frame of the answer */ \
    bit<64> place;      /* of the sender, one bit */ \
    bit<64> everyone;   /* all places */ \
    bit<1> decided;     /* the answer has the scale */ \
    KEPT bit<1> all;    /* the answer goes to all senders */ \
    bit<32> round;      /* that is complete */

// One lane of a frame on its way through the arithmetic.
struct lane_t {
    bit<4> fault;       // of the pair: the code of its refusal
    int<64> number;     // to add
    int<64> sum;        // afterwards
}
