// The parser takes a frame apart as far as it can be the aggregator's. Where it
// stops, the headers that it has not reached stay invalid. What is behind the
// UDP datagram, such as padding, is left alone.

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

    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHER_VLAN: vlan;
            ETHER_IPV4: ipv4;
            ETHER_IPV6: ipv6;
            default: accept;
        }
    }

    state vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.type) {
            ETHER_IPV4: ipv4;
            ETHER_IPV6: ipv6;
            default: accept;
        }
    }

    // No options, no fragments.
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version_ihl, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (0x45, 0 &&& 0x3fff, PROTOCOL_UDP): udp;
            default: accept;
        }
    }

    state ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.version, hdr.ipv6.next) {
            (6, PROTOCOL_UDP): udp;
            default: accept;
        }
    }

    // A datagram is taken apart by its length: 8 bytes of UDP header, 12 of Libra's
    // and 136 of the stripe. Any other length is read as a whole.
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.length) {
            156: hot;
            0 .. 8: accept;
            9 .. 19: short;
            20: header_only;
            21 .. 8980: odd;
            default: accept;
        }
    }

    state hot {
        packet.extract(hdr.libra);
        packet.extract(hdr.stripe);
        transition accept;
    }

    state header_only {
        packet.extract(hdr.libra);
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
