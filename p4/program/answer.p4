// SPDX-License-Identifier: Apache-2.0

// What leaves the pipeline in the place of a frame (docs/wire.md, Answers).

// Answer turns a frame into the answer to it: an ERROR if the frame has a code,
// otherwise an ACK, with the stripe if sums are wanted. The sums and the checksums are
// the architecture's.
control Answer(inout headers_t hdr, inout state_t meta) {
    apply {
        bit<48> mac = hdr.ethernet.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        bit<32> ip = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = ip;
        bit<16> port = hdr.udp.dst;
        hdr.udp.dst = hdr.udp.src;
        hdr.udp.src = port;

        hdr.libra.version = VERSION;
        hdr.libra.flags = 0;
        if (meta.code != CODE_NONE) {
            hdr.stripe.setInvalid();
            hdr.refusal.setValid();
            hdr.refusal.code = (bit<16>)meta.code;
            hdr.refusal.index = (bit<16>)meta.lane;
            hdr.refusal.value = meta.value;
            hdr.libra.type = TYPE_ERROR;
            hdr.udp.length = 28;
            hdr.ipv4.length = 48;
        } else {
            hdr.libra.type = TYPE_ACK;
            if (meta.want_sum == 1) {
                hdr.libra.flags = FLAG_SUM;
                hdr.udp.length = 156;
                hdr.ipv4.length = 176;
            } else {
                hdr.stripe.setInvalid();
                hdr.udp.length = 20;
                hdr.ipv4.length = 40;
            }
        }
        hdr.ipv4.tos = 0;
        hdr.ipv4.id = 0;
        hdr.ipv4.fragment = 0x4000;
        hdr.ipv4.ttl = 64;
    }
}
