// SPDX-License-Identifier: Apache-2.0

// Checksums of v1model.

// LibraVerify sums each of the aggregator's datagrams with its checksum, which makes 0
// if it is right: a checksum that computes to 0 is sent as 0xffff. What is not valid is
// not summed, so one list serves datagrams of every length. A body may have an odd
// length, so it comes last.
control LibraVerify(inout headers_t hdr, inout state_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), { IPV4_FIELDS, hdr.ipv4.checksum }, meta.zero, HashAlgorithm.csum16);
        verify_checksum(hdr.ipv4.isValid() && hdr.udp.isValid(),
            { PSEUDO_FIELDS, UDP_FIELDS, SCALE_FIELDS, STRIPE_FIELDS, hdr.udp.checksum, hdr.body.bytes },
            meta.zero, HashAlgorithm.csum16);
    }
}

// BadChecksum says how a frame is counted whose checksums are not right: apart if all
// that is wrong is that the UDP checksum covers the pseudo header only, because its
// sender left the rest to a network card.
control BadChecksum(inout headers_t hdr, inout state_t meta) {
    bit<16> ip;
    bit<16> pseudo;

    apply {
        meta.event = EVENT_BAD_CHECKSUM;
        hash(ip, HashAlgorithm.csum16, 16w0, { IPV4_FIELDS, hdr.ipv4.checksum }, 17w0x10000);
        hash(pseudo, HashAlgorithm.csum16, 16w0, { PSEUDO_FIELDS }, 17w0x10000);
        if (ip == 0 && hdr.udp.checksum != 0 && hdr.udp.checksum == ~pseudo) {
            meta.event = EVENT_PARTIAL_CHECKSUM;
        }
    }
}
