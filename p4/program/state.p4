// What the pipeline knows of a frame beside its headers.

const bit<2> ARITHMETIC_EXACT = 0;
const bit<2> ARITHMETIC_FIXED = 2;

const bit<2> MODE_FETCHADD = 1; // the other is combine

// Events that concern no job. From 16 on: ERROR replies by code.
const bit<32> EVENT_PASSED = 0;
const bit<32> EVENT_FORWARDED = 1;
const bit<32> EVENT_TRUNCATED = 2;
const bit<32> EVENT_BAD_CHECKSUM = 3;
const bit<32> EVENT_PARTIAL_CHECKSUM = 4;
const bit<32> EVENT_SHORT = 5;
const bit<32> EVENT_UNEXPECTED = 6;
const bit<32> EVENT_REFUSED = 16;

// Events of a job and of a sender. From 16 on, of a job: ERROR replies by code.
const bit<32> EVENT_DUPLICATE = 0;
const bit<32> EVENT_SENDER_REFUSED = 1;

// A job, as its entry in table jobs has it.
struct job_t {
    bit<8> index;       // of its counters
    bit<2> mode;
    bit<2> arithmetic;
    bit<1> bank;        // that frames add to
    bit<16> base;       // its first row
    bit<16> rows;       // rows that are the job's in all lanes
    bit<22> more;       // lanes that have one row more
    bit<32> slots;      // of all lanes, for error replies
    bit<16> bias;       // 189 + exponent of the unit of exact arithmetic
}

// A sender's admission, as its entry in table senders has it.
struct sender_t {
    bit<16> index;      // of its duplicate filter and counters
    bit<32> generation; // of the admission: no two have the same
    bit<48> mac;
    bit<32> ip;
    bit<16> port;
    bit<16> epoch;
}

// One lane of a frame on its way through the arithmetic.
struct lane_t {
    bit<4> fault;       // of the pair: the code of its refusal
    bit<32> row;        // in the lane's register
    int<64> number;     // to add
    int<64> sum;        // afterwards
}

#define LANE(j) lane_t lane##j;

struct state_t {
    bit<1> foreign;     // not a frame of Libra's port
    bit<1> local;       // addressed to the aggregator
    bit<1> job_known;
    bit<1> sender_known;
    job_t job;
    sender_t sender;
    bit<32> entry;      // of the duplicate filter
    bit<1> fresh;
    bit<1> want_sum;
    bit<32> event;      // what is counted of the frame
    bit<4> code;        // of an ERROR
    bit<5> lane;        // its index
    bit<32> value;
    bit<16> zero;       // nothing writes it
    bit<4> rank_fault;  // the first lane whose rank is too large
    bit<5> rank_lane;
    bit<4> pair_fault;  // the first lane with any fault
    bit<5> pair_lane;
    bit<5> pairs;
    bit<5> cut;         // sums that saturated
    EACH_LANE(LANE)
}

#undef LANE
