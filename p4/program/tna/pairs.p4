// SPDX-License-Identifier: Apache-2.0

// The check of the pairs, of all lanes at once, in steps that a pipeline has.

// CheckPairs says for each lane which row it adds to, and which lane is the first
// whose rank is too large. It counts the pairs.
control CheckPairs(inout headers_t hdr, inout state_t meta) {
    // How many slots the job has in each lane comes with the entry, so that one stage
    // subtracts them all: a saturating subtraction leaves 0 if the rank is too large.
    action bound(bit<16> slots0, bit<16> slots1, bit<16> slots2, bit<16> slots3, bit<16> slots4,
                 bit<16> slots5, bit<16> slots6, bit<16> slots7, bit<16> slots8, bit<16> slots9,
                 bit<16> slots10, bit<16> slots11, bit<16> slots12, bit<16> slots13, bit<16> slots14,
                 bit<16> slots15, bit<16> slots16, bit<16> slots17, bit<16> slots18, bit<16> slots19,
                 bit<16> slots20, bit<16> slots21) {
#define MEASURE(j) meta.lane##j.left = slots##j |-| hdr.stripe.slot##j;
        EACH_LANE(MEASURE)
    }

    table limits {
        key = { hdr.libra.job: exact; }
        actions = { bound; NoAction; }
        const default_action = NoAction();
        size = JOBS;
    }

    action fault(bit<5> lane) {
        meta.pair_fault = CODE_SLOT_RANGE;
        meta.pair_lane = lane;
    }

    // The first lane with nothing left.
    table faults {
        key = {
#define LEFT(j) meta.lane##j.left: ternary;
            LANE_FIELDS(LEFT)
        }
        actions = { fault; NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _): fault(0);
            (_, 0, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _): fault(1);
            (_, _, 0, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _): fault(2);
            (_, _, _, 0, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _): fault(3);
            (_, _, _, _, 0, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _): fault(4);
            (_, _, _, _, _, 0, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _): fault(5);
            (_, _, _, _, _, _, 0, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _): fault(6);
            (_, _, _, _, _, _, _, 0, _, _, _, _, _, _, _, _, _, _, _, _, _, _): fault(7);
            (_, _, _, _, _, _, _, _, 0, _, _, _, _, _, _, _, _, _, _, _, _, _): fault(8);
            (_, _, _, _, _, _, _, _, _, 0, _, _, _, _, _, _, _, _, _, _, _, _): fault(9);
            (_, _, _, _, _, _, _, _, _, _, 0, _, _, _, _, _, _, _, _, _, _, _): fault(10);
            (_, _, _, _, _, _, _, _, _, _, _, 0, _, _, _, _, _, _, _, _, _, _): fault(11);
            (_, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _, _, _, _, _, _, _): fault(12);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _, _, _, _, _, _): fault(13);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _, _, _, _, _): fault(14);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _, _, _, _): fault(15);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _, _, _): fault(16);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _, _): fault(17);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _): fault(18);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, 0, _, _): fault(19);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, 0, _): fault(20);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, 0): fault(21);
        }
    }

    // The ones in each half of a mask: an entry for each of 2,048 halves.
    action low(bit<5> ones) { meta.pairs = ones; }
    action high(bit<5> ones) { meta.pairs = meta.pairs + ones; }

    table low_pairs {
        key = { hdr.stripe.mask[10:0]: exact @name("mask"); }
        actions = { low; }
        size = 2048;
    }

    table high_pairs {
        key = { hdr.stripe.mask[21:11]: exact @name("mask"); }
        actions = { high; }
        size = 2048;
    }

    apply {
        low_pairs.apply();
        high_pairs.apply();
        limits.apply();
#define PLACE(j) meta.lane##j.row = meta.job.base + hdr.stripe.slot##j;
        EACH_LANE(PLACE)
#define UNUSED(j) \
        if (hdr.stripe.mask[j:j] == 0) { \
            meta.lane##j.left = 1; \
        }
        EACH_LANE(UNUSED)
        faults.apply();
    }
}
