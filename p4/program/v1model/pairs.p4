// SPDX-License-Identifier: Apache-2.0

// CheckPairs is check 13, of all lanes at once: it turns each pair into the number to
// add, or says what is wrong with it. Where numbers are float32, that is: not finite; then
// the rank; then, in exact arithmetic, the value. The lowest lane decides.
control CheckPairs(inout headers_t hdr, inout state_t meta) {
    int<16> shift;
    bit<64> n;

    apply {
        // In exact arithmetic, the significand sits at the top of 64 bits; what is left
        // is one shift to the right, whose last step rounds (internal/num/fixedpoint).
#define PAIR(j) \
        if (hdr.stripe.mask[j:j] == 1) { \
            meta.pairs = meta.pairs + 1; \
            meta.lane##j.fault = CODE_NONE; \
            if (meta.job.arithmetic != ARITHMETIC_FIXED && hdr.stripe.number##j[30:23] == 0xff) { \
                meta.lane##j.fault = CODE_NOT_FINITE; \
            } else if (meta.job.arithmetic == ARITHMETIC_EXACT) { \
                shift = (int<16>)meta.job.bias - (int<16>)(bit<16>)hdr.stripe.number##j[30:23]; \
                n = 0; \
                if (hdr.stripe.number##j[30:23] != 0) { \
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
