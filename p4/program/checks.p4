// The checks of a frame before anything is added, in the order of docs/wire.md.

// CheckHeader is checks 3 to 4, of what needs no job.
control CheckHeader(inout headers_t hdr, inout state_t meta) {
    apply {
        if (hdr.libra.version != VERSION) {
            meta.code = CODE_WRONG_VERSION;
            meta.value = (bit<32>)VERSION;
        } else if (hdr.libra.type != TYPE_HOT && hdr.libra.type != TYPE_SCALE) {
            meta.code = CODE_TYPE;
        }
    }
}

// CheckBody is checks 8 to 10. A job of this data plane negotiates no scale.
control CheckBody(inout headers_t hdr, inout state_t meta) {
    apply {
        if (hdr.libra.flags & FLAG_WANT_SUM != 0) {
            meta.want_sum = 1;
        }
        if (hdr.libra.type == TYPE_SCALE) {
            if (hdr.udp.length != 28) {
                meta.code = CODE_LENGTH;
                meta.value = 8;
            } else {
                meta.code = CODE_MODE;
            }
        } else if (!hdr.stripe.isValid()) {
            meta.code = CODE_LENGTH;
            meta.value = 1;
        } else if (meta.want_sum == 1 && meta.job.mode != MODE_FETCHADD) {
            meta.code = CODE_MODE;
        } else if (hdr.libra.flags & FLAG_DENSE != 0 || hdr.stripe.beyond != 0) {
            meta.code = CODE_LAYOUT;
        }
    }
}

// CheckPairs is check 13, of all lanes at once: it turns each pair into a number and
// a row, or says what is wrong with it. In exact arithmetic that is: not finite; then
// the rank; then the value. The lowest lane decides.
control CheckPairs(inout headers_t hdr, inout state_t meta) {
    bit<32> base;
    int<16> shift;
    bit<64> n;

    apply {
        base = (bit<32>)meta.job.base;
        if (meta.job.bank == 1) {
            base = base + ROWS;
        }

        // In exact arithmetic, the significand sits at the top of 64 bits; what is left
        // is one shift to the right, whose last step rounds (internal/fixedpoint).
#define PAIR(j) \
        if (hdr.stripe.mask[j:j] == 1) { \
            meta.pairs = meta.pairs + 1; \
            meta.lane##j.row = base + (bit<32>)hdr.stripe.slot##j; \
            meta.lane##j.fault = CODE_NONE; \
            if (meta.job.arithmetic == ARITHMETIC_EXACT) { \
                shift = (int<16>)meta.job.bias - (int<16>)(bit<16>)hdr.stripe.number##j[30:23]; \
                n = 0; \
                if (hdr.stripe.number##j[30:23] == 0xff) { \
                    meta.lane##j.fault = CODE_NOT_FINITE; \
                } else if (hdr.stripe.number##j[30:23] != 0) { \
                    if (shift < 0) { \
                        meta.lane##j.fault = CODE_OVERFLOW; \
                    } else if (shift <= 63) { \
                        n = 1w1 ++ hdr.stripe.number##j[22:0] ++ 40w0; \
                        n = ((n >> ((bit<16>)shift)[7:0]) + 1) >> 1; \
                    } \
                } \
                if (hdr.stripe.number##j[31:31] == 1) { \
                    n = 0 - n; \
                } \
                meta.lane##j.number = (int<64>)n; \
            } else { \
                meta.lane##j.number = (int<64>)(int<32>)hdr.stripe.number##j; \
            } \
            if (hdr.stripe.slot##j > meta.job.rows || \
                hdr.stripe.slot##j == meta.job.rows && meta.job.more[j:j] == 0) { \
                meta.rank_fault = CODE_SLOT_RANGE; \
                meta.rank_lane = j; \
                if (meta.lane##j.fault != CODE_NOT_FINITE) { \
                    meta.lane##j.fault = CODE_SLOT_RANGE; \
                } \
            } \
            if (meta.lane##j.fault != CODE_NONE) { \
                meta.pair_fault = meta.lane##j.fault; \
                meta.pair_lane = j; \
            } \
        }
        EACH_LANE(PAIR)
    }
}
