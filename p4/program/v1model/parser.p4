// SPDX-License-Identifier: Apache-2.0

// The parser of v1model, which reads bodies of any length for their checksums.

#define VERIFY_IPV4
#define VERIFY_HEADER
#define VERIFY_HOT
#define UDP_OF_IPV6 udp
#define SCALE_BODY scale

parser LibraParser(packet_in packet, out headers_t hdr, inout state_t meta,
                   inout standard_metadata_t standard) {
    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: request;
            default: ethernet;
        }
    }

    state request {
        packet.extract(hdr.request);
        transition accept;
    }

#include "../parser.p4"

    state scale {
        packet.extract(hdr.libra);
        packet.extract(hdr.scale);
        transition accept;
    }

    state odd {
        packet.extract(hdr.libra);
        packet.extract(hdr.body, (bit<32>)(hdr.udp.length - 20) << 3);
        transition accept;
    }

    state short {
        packet.extract(hdr.body, (bit<32>)(hdr.udp.length - 8) << 3);
        transition accept;
    }
}
