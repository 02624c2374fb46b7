// What v1model has beside the headers on the wire: bodies of any length, the control
// plane's packets, and lanes of 64 bits.

// The port that leads to the control plane, over P4Runtime's stream.
const bit<9> CPU_PORT = 510;

// A UDP payload of another length: it is read for its checksum only. A frame of 9,000
// bytes has up to 8,972 of them.
header body_t {
    varbit<71776> bytes;
}

// What the control plane sends into the pipeline: an operation on one row of all
// lanes' registers. It comes back with the row as it was before.
// Operations: 0 reads the row, 1 clears it.
const bit<8> OPERATION_CLEAR = 1;

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
    refusal_t refusal;
    stripe_t stripe;
    body_t body;
}

// One lane of a frame on its way through the arithmetic.
struct lane_t {
    bit<4> fault;       // of the pair: the code of its refusal
    bit<32> row;        // in the lane's register
    int<64> number;     // to add
    int<64> sum;        // afterwards
}
