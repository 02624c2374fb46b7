// SPDX-License-Identifier: Apache-2.0

// What the checksums of headers and datagrams cover, as lists of fields.

#define NUMBER(j) , hdr.stripe.number##j
#define SLOT(j) , hdr.stripe.slot##j
#define IPV4_FIELDS \
    hdr.ipv4.version_ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.fragment, \
    hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst
#define PSEUDO_FIELDS hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, hdr.udp.length
#define UDP_FIELDS \
    hdr.udp.src, hdr.udp.dst, hdr.udp.length, \
    hdr.libra.version, hdr.libra.type, hdr.libra.flags, hdr.libra.job, hdr.libra.sender, \
    hdr.libra.epoch, hdr.libra.seq
#define SCALE_FIELDS hdr.scale.iteration, hdr.scale.exponent, hdr.scale.zero
#define REFUSAL_FIELDS hdr.refusal.code, hdr.refusal.index, hdr.refusal.value
#define STRIPE_FIELDS hdr.stripe.beyond, hdr.stripe.mask LANE_FIELDS(NUMBER) LANE_FIELDS(SLOT)
