// What leaves the pipeline in the place of a frame (docs/wire.md, Answers).

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

// Answer turns a frame into the answer to it: an ERROR if the frame has a code,
// otherwise an ACK, with the sums if they are wanted. size is the length of the
// answer's frame; what is behind it must be cut off.
control Answer(inout headers_t hdr, inout state_t meta, out bit<32> size) {
    Sums() sums;
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

        hdr.body.setInvalid();
        hdr.libra.version = VERSION;
        if (meta.code != CODE_NONE) {
            hdr.stripe.setInvalid();
            hdr.refusal.setValid();
            hdr.refusal.code = (bit<16>)meta.code;
            hdr.refusal.index = (bit<16>)meta.lane;
            hdr.refusal.value = meta.value;
            hdr.libra.type = TYPE_ERROR;
            hdr.libra.flags = 0;
            hdr.udp.length = 28;
            hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0,
                { PSEUDO_FIELDS, UDP_FIELDS, REFUSAL_FIELDS }, 17w0x10000);
        } else {
            hdr.libra.type = TYPE_ACK;
            if (meta.want_sum == 1) {
                hdr.libra.flags = FLAG_SUM;
                hdr.udp.length = 156;
                sums.apply(hdr, meta);
                hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0,
                    { PSEUDO_FIELDS, UDP_FIELDS, STRIPE_FIELDS }, 17w0x10000);
            } else {
                hdr.stripe.setInvalid();
                hdr.libra.flags = 0;
                hdr.udp.length = 20;
                hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0, { PSEUDO_FIELDS, UDP_FIELDS }, 17w0x10000);
            }
        }

        hdr.ipv4.tos = 0;
        hdr.ipv4.id = 0;
        hdr.ipv4.fragment = 0x4000;
        hdr.ipv4.ttl = 64;
        hdr.ipv4.length = 20 + hdr.udp.length;
        if (hdr.udp.checksum == 0) {
            hdr.udp.checksum = 0xffff; // RFC 768
        }
        hash(hdr.ipv4.checksum, HashAlgorithm.csum16, 16w0, { IPV4_FIELDS }, 17w0x10000);
        size = 14 + (bit<32>)hdr.ipv4.length;
        if (hdr.vlan.isValid()) {
            size = size + 4;
        }
    }
}
