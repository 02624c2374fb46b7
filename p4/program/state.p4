// SPDX-License-Identifier: Apache-2.0

// What the pipeline knows of a frame beside its headers. KEPT is the architecture's
// word for what stays from one pass of a frame to the next, PRIVATE what only it knows.

// An architecture may lack some of these.
@noWarn("unused") const bit<2> ARITHMETIC_EXACT = 0;
@noWarn("unused") const bit<2> ARITHMETIC_LUT = 1;
@noWarn("unused") const bit<2> ARITHMETIC_FIXED = 2;

// What a pass of a frame does.
@noWarn("unused") const bit<2> STEP_CHECK = 0;  // everything that needs one pass
@noWarn("unused") const bit<2> STEP_ADD = 1;    // adds one lane
@noWarn("unused") const bit<2> STEP_CLEAR = 2;  // clears the row of the next round
@noWarn("unused") const bit<2> STEP_ANSWER = 3; // reads the sums, and answers

const bit<2> MODE_FETCHADD = 1; // 0 is combine
@noWarn("unused") const bit<2> MODE_SYNC = 2;

// Events that concern no job. From 16 on: ERROR replies by code.
const bit<32> EVENT_PASSED = 0;
const bit<32> EVENT_FORWARDED = 1;
const bit<32> EVENT_TRUNCATED = 2;
const bit<32> EVENT_BAD_CHECKSUM = 3;
@noWarn("unused") const bit<32> EVENT_PARTIAL_CHECKSUM = 4;
const bit<32> EVENT_SHORT = 5;
const bit<32> EVENT_UNEXPECTED = 6;
const bit<32> EVENT_REFUSED = 16;

// Events of a job and of a sender. From 16 on, of a job: ERROR replies by code.
const bit<32> EVENT_DUPLICATE = 0;
const bit<32> EVENT_SENDER_REFUSED = 1;

// A job, as its entry in table jobs has it.
struct job_t {
    bit<1> found;
    KEPT bit<8> index;  // of its counters
    bit<2> mode;
    KEPT bit<2> arithmetic;
    KEPT bit<1> bank;   // that frames add to
    KEPT bit<16> base;  // its first row in that bank
    bit<16> rows;       // rows that are the job's in all lanes
    bit<22> more;       // lanes that have one row more
    bit<32> slots;      // of all lanes, for error replies
    KEPT bit<16> bias;  // 189 + exponent of the unit of exact arithmetic
}

// A sender's admission, as its entry in table senders has it.
struct sender_t {
    bit<1> found;
    KEPT bit<16> index; // of its duplicate filter and counters
    bit<32> generation; // of the admission: no two have the same, and all fit 23 bits
    bit<16> epoch;
}

// What an architecture knows of a lane is in its lane_t.
#define LANE(j) lane_t lane##j;

struct state_t {
    bit<1> ipv4_damaged; // what a parser found that verifies checksums
    bit<1> udp_damaged;
    bit<1> answered;    // an answer takes the frame's place
    bit<1> foreign;     // not a frame of Libra's port
    bit<1> local;       // addressed to the aggregator
    KEPT bit<1> job_known;
    bit<1> sender_known;
    bit<1> intact;      // what is left to check are its pairs
    bit<1> scale;       // it reports a scale
    job_t job;
    sender_t sender;
    bit<32> entry;      // of the duplicate filter
    KEPT bit<1> fresh;
    KEPT bit<1> want_sum;
    bit<32> event;      // what is counted of the frame
    bit<9> port;        // that it is sent on to
    bit<1> flood;       // to all of them
    bit<1> drop;
    bit<4> code;        // of an ERROR
    bit<5> lane;        // its index
    bit<32> value;
    bit<16> zero;       // nothing writes it
    bit<4> rank_fault;  // the first lane whose rank is too large
    bit<5> rank_lane;
    bit<4> pair_fault;  // the first lane with any fault
    bit<5> pair_lane;
    KEPT bit<5> pairs;
    KEPT bit<5> cut;    // sums that saturated
    KEPT bit<2> step;
    KEPT bit<22> todo;  // lanes that are not added yet
    bit<1> again;       // another pass follows
    PRIVATE
    EACH_LANE(LANE)
}

#undef LANE
