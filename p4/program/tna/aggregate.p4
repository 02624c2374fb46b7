// SPDX-License-Identifier: Apache-2.0

// The registers of TNA: 22 of slots, one for each lane, and the duplicate filter. A
// frame reads and writes each of them at most once, in one step, so nothing can be
// refused after that step. Fixed arithmetic needs no refusal.

control Aggregate(inout headers_t hdr, inout state_t meta) {
    // The newest number that each entry has had. The control plane zeroes the entries
    // of a sender before it admits it.
    Register<bit<32>, bit<17>>(SENDERS * FILTER, 0) seen;

    RegisterAction<bit<32>, bit<17>, bit<1>>(seen) enter = {
        void apply(inout bit<32> newest, out bit<1> fresh) {
            fresh = 0;
            if ((int<32>)(hdr.libra.seq - newest) > 0) {
                newest = hdr.libra.seq;
                fresh = 1;
            }
        }
    };

    RegisterAction<bit<32>, bit<17>, bit<1>>(seen) look = {
        void apply(inout bit<32> newest, out bit<1> fresh) {
            fresh = 0;
            if ((int<32>)(hdr.libra.seq - newest) > 0) {
                fresh = 1;
            }
        }
    };

#define SLOTS(j) \
    Register<int<32>, bit<16>>(2 * ROWS, 0) slots##j; \
    RegisterAction<int<32>, bit<16>, int<32>>(slots##j) add##j = { \
        void apply(inout int<32> slot, out int<32> sum) { \
            slot = slot |+| (int<32>)hdr.stripe.number##j; \
            sum = slot; \
        } \
    }; \
    RegisterAction<int<32>, bit<16>, int<32>>(slots##j) read##j = { \
        void apply(inout int<32> slot, out int<32> sum) { sum = slot; } \
    };
    EACH_LANE(SLOTS)

    apply {
        bit<17> entry = meta.sender.index[6:0] ++ hdr.libra.seq[9:0];
        if (meta.pair_fault == CODE_NONE) {
            meta.fresh = enter.execute(entry);
        } else {
            meta.fresh = look.execute(entry);
        }
        if (meta.pair_fault != CODE_NONE && (meta.fresh == 1 || meta.want_sum == 1)) {
            meta.code = meta.pair_fault;
            meta.lane = meta.pair_lane;
            meta.value = meta.job.slots;
        } else if (meta.fresh == 1) {
#define ADD(j) \
            if (hdr.stripe.mask[j:j] == 1) { \
                hdr.stripe.number##j = (bit<32>)add##j.execute(meta.lane##j.row); \
            } else { \
                hdr.stripe.number##j = 0; \
                hdr.stripe.slot##j = 0; \
            }
            EACH_LANE(ADD)
        } else if (meta.want_sum == 1) {
#define READ(j) \
            if (hdr.stripe.mask[j:j] == 1) { \
                hdr.stripe.number##j = (bit<32>)read##j.execute(meta.lane##j.row); \
            } else { \
                hdr.stripe.number##j = 0; \
                hdr.stripe.slot##j = 0; \
            }
            EACH_LANE(READ)
        }
    }
}
