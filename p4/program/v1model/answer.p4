// SPDX-License-Identifier: Apache-2.0

// What v1model adds to an answer: sums, checksums, and the end of the frame.

// Sums writes what the lanes hold after the frame into its stripe: float32 in exact
// arithmetic, int32 in fixed. Lanes that are not used become zero.
control Sums(inout headers_t hdr, inout state_t meta) {
#define FLOAT(j) Float() float##j;
    EACH_LANE(FLOAT)
    apply {
#define SUM(j) \
        if (hdr.stripe.mask[j:j] == 0) { \
            hdr.stripe.number##j = 0; \
            hdr.stripe.slot##j = 0; \
        } else if (meta.job.arithmetic == ARITHMETIC_EXACT) { \
            float##j.apply(meta.lane##j.sum, meta.job.bias, hdr.stripe.number##j); \
        } else { \
            hdr.stripe.number##j = ((bit<64>)meta.lane##j.sum)[31:0]; \
        }
        EACH_LANE(SUM)
    }
}

// Seal computes the checksums of an answer, and the length of its frame: what is behind
// it must be cut off.
control Seal(inout headers_t hdr, inout state_t meta) {
    apply {
        if (hdr.refusal.isValid()) {
            hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0,
                { PSEUDO_FIELDS, UDP_FIELDS, REFUSAL_FIELDS }, 17w0x10000);
        } else if (hdr.scale.isValid()) {
            hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0,
                { PSEUDO_FIELDS, UDP_FIELDS, SCALE_FIELDS }, 17w0x10000);
        } else if (hdr.stripe.isValid()) {
            hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0,
                { PSEUDO_FIELDS, UDP_FIELDS, STRIPE_FIELDS }, 17w0x10000);
        } else {
            hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0, { PSEUDO_FIELDS, UDP_FIELDS }, 17w0x10000);
        }
        if (hdr.udp.checksum == 0) {
            hdr.udp.checksum = 0xffff; // RFC 768
        }
        hash(hdr.ipv4.checksum, HashAlgorithm.csum16, 16w0, { IPV4_FIELDS }, 17w0x10000);
        hdr.body.setInvalid();
        meta.size = 14 + (bit<32>)hdr.ipv4.length;
        if (hdr.vlan.isValid()) {
            meta.size = meta.size + 4;
        }
    }
}
