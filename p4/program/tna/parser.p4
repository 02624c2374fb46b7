// SPDX-License-Identifier: Apache-2.0

// The parser and the deparser of TNA. A parser sums the bytes that it extracts, so it
// verifies headers and whole one-stripe frames, and nothing of any other length.

#define VERIFY_IPV4 \
        ipv4_sum.add(hdr.ipv4); \
        meta.ipv4_damaged = (bit<1>)!ipv4_sum.verify();
#define VERIFY_HEADER \
        udp_sum.add({ PSEUDO_FIELDS, UDP_FIELDS, hdr.udp.checksum }); \
        meta.udp_damaged = (bit<1>)!udp_sum.verify();
#define VERIFY_HOT \
        udp_sum.add({ PSEUDO_FIELDS, UDP_FIELDS, STRIPE_FIELDS, hdr.udp.checksum }); \
        meta.udp_damaged = (bit<1>)!udp_sum.verify();
#define UDP_OF_IPV6 ports_only
#define SCALE_BODY odd

parser LibraParser(packet_in packet, out headers_t hdr, out state_t meta,
                   out ingress_intrinsic_metadata_t from) {
    Checksum() ipv4_sum;
    Checksum() udp_sum;

    state start {
        packet.extract(from);
        packet.advance(PORT_METADATA_SIZE);
        meta = {...};
        meta.event = EVENT_REFUSED;
        transition ethernet;
    }

#include "../parser.p4"

    state odd {
        packet.extract(hdr.libra);
        transition accept;
    }

    state short { transition accept; }

    // The aggregator has no IPv6 address.
    state ports_only {
        packet.extract(hdr.udp);
        transition accept;
    }
}

control LibraDeparser(packet_out packet, inout headers_t hdr, in state_t meta) {
    Checksum() ipv4_sum;
    Checksum() refusal_sum;
    Checksum() stripe_sum;
    Checksum() header_sum;

    apply {
        if (meta.answered == 1) {
            hdr.ipv4.checksum = ipv4_sum.update({ IPV4_FIELDS });
            if (hdr.refusal.isValid()) {
                hdr.udp.checksum = refusal_sum.update({ PSEUDO_FIELDS, UDP_FIELDS, REFUSAL_FIELDS }, true);
            } else if (hdr.stripe.isValid()) {
                hdr.udp.checksum = stripe_sum.update({ PSEUDO_FIELDS, UDP_FIELDS, STRIPE_FIELDS }, true);
            } else {
                hdr.udp.checksum = header_sum.update({ PSEUDO_FIELDS, UDP_FIELDS }, true);
            }
        }
        packet.emit(hdr);
    }
}

// Answers and frames that are sent on leave without passing the egress pipeline.
struct nothing_t {}

parser EgressParser(packet_in packet, out nothing_t hdr, out nothing_t meta,
                    out egress_intrinsic_metadata_t from) {
    state start {
        packet.extract(from);
        transition accept;
    }
}

control Egress(inout nothing_t hdr, inout nothing_t meta, in egress_intrinsic_metadata_t from,
               in egress_intrinsic_metadata_from_parser_t parsed,
               inout egress_intrinsic_metadata_for_deparser_t deparser,
               inout egress_intrinsic_metadata_for_output_port_t output) {
    apply {}
}

control EgressDeparser(packet_out packet, inout nothing_t hdr, in nothing_t meta,
                       in egress_intrinsic_metadata_for_deparser_t deparser) {
    apply {}
}
