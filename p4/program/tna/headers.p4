// SPDX-License-Identifier: Apache-2.0

// What TNA has beside the headers on the wire. A frame takes one pass.

#define KEPT
#define PRIVATE

// One lane of a frame on its way to its register.
struct lane_t {
    bit<16> row;
    bit<16> left; // slots of the lane from this one on: 0 if it is not the job's
}

struct headers_t {
    ethernet_t ethernet;
    vlan_t vlan;
    ipv4_t ipv4;
    ipv6_t ipv6;
    udp_t udp;
    libra_t libra;
    refusal_t refusal;
    stripe_t stripe;
}
