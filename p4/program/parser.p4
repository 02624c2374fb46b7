// SPDX-License-Identifier: Apache-2.0

// The states that take a frame apart, as far as it can be the aggregator's: an
// architecture's parser has them among its own. Where they stop, the headers that they
// have not reached stay invalid. What is behind the UDP datagram, such as padding, is
// left alone. An architecture says what it does with checksums here (VERIFY_IPV4,
// VERIFY_HEADER, VERIFY_HOT), which state reads a UDP header behind IPv6 (UDP_OF_IPV6), and
// which one the 8 bytes of a report of a scale (SCALE_BODY).

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
        VERIFY_IPV4
        transition select(hdr.ipv4.version_ihl, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (0x45, 0 &&& 0x3fff, PROTOCOL_UDP): udp;
            default: accept;
        }
    }

    state ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.version, hdr.ipv6.next) {
            (6, PROTOCOL_UDP): UDP_OF_IPV6;
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
            28: SCALE_BODY;
            21 .. 8980: odd;
            default: accept;
        }
    }

    state hot {
        packet.extract(hdr.libra);
        packet.extract(hdr.stripe);
        VERIFY_HOT
        transition accept;
    }

    state header_only {
        packet.extract(hdr.libra);
        VERIFY_HEADER
        transition accept;
    }
