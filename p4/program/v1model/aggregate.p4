// SPDX-License-Identifier: Apache-2.0

// The registers of v1model: one of slots for each lane, the duplicate filter, and the
// rounds of sync mode. In a pass, a frame reads each of them once and writes it once. All
// lanes are read before any is written, because a frame of exact arithmetic whose sum
// would overflow in one lane is refused as a whole; fixed arithmetic needs no such order.

// Aggregate applies a frame that has passed all checks but those that depend on
// what the registers hold, or does what a request of the control plane asks for. A frame
// of lut arithmetic takes a pass for each lane; bmv2 takes a frame that is resubmitted
// before all others, so no frame or request finds half of it in the registers.
control Aggregate(inout headers_t hdr, inout state_t meta) {
    register<bit<64>>(SENDERS * FILTER) seen; // code and lane of a refusal, generation of the admission, number
    register<bit<96>>(ROWS) rounds;           // who has contributed, number
#define SLOTS(j) register<bit<64>>(2 * ROWS) slots##j;
    EACH_LANE(SLOTS)

    AddLut() add_lut;
    bit<64> before;
    int<64> sum;
    bit<96> state;
    bit<32> group;
    bit<32> row;
    bit<32> number;
    bit<32> total;
    bit<1> cut;
    bit<1> applied;

#define ROW(j) ((bit<32>)meta.job.base + (bit<32>)hdr.stripe.slot##j)
    apply { @atomic {
        // Both banks of a row belong to the same group.
        group = ROW(0) & (ROWS - 1);
        state = 0;
        applied = 0;
        if (hdr.request.isValid()) {
#define READ_VALUE(j) slots##j.read(hdr.row.value##j, hdr.request.number);
#define CLEAR_VALUE(j) slots##j.write(hdr.request.number, 0);
            EACH_LANE(READ_VALUE)
            if (hdr.request.operation == OPERATION_CLEAR) {
                EACH_LANE(CLEAR_VALUE)
                rounds.write(hdr.request.number & (ROWS - 1), 0);
            }
        } else if (meta.step == STEP_ADD) {
            row = 0;
            number = 0;
            before = 0;
#define TAKE(j) \
            if (meta.todo[j:j] == 1) { \
                row = ROW(j); \
                number = hdr.stripe.number##j; \
                slots##j.read(before, row); \
            } else
            LANE_FIELDS(TAKE) {}
            add_lut.apply(before[31:0], number, total, cut);
            meta.cut = meta.cut + (bit<5>)cut;
#define PUT(j) \
            if (meta.todo[j:j] == 1) { \
                slots##j.write(row, (bit<64>)total); \
                meta.todo[j:j] = 0; \
            } else
            LANE_FIELDS(PUT) {}
            if (meta.todo == 0) {
                meta.step = STEP_ANSWER;
                if (meta.all == 1) {
                    meta.step = STEP_CLEAR;
                }
            }
            meta.again = 1;
        } else if (meta.step == STEP_CLEAR) {
#define CLEAR_OTHER(j) \
            if (hdr.stripe.mask[j:j] == 1) { \
                slots##j.write(ROW(j) ^ ROWS, 0); \
            }
            EACH_LANE(CLEAR_OTHER)
            meta.step = STEP_ANSWER;
            meta.again = 1;
        } else {
            if (meta.step == STEP_CHECK) {
                // An entry of an earlier admission counts as empty.
                meta.entry = (bit<32>)meta.sender.index << 10 | hdr.libra.seq & (FILTER - 1);
                seen.read(before, meta.entry);
                if (before[54:32] != meta.sender.generation[22:0]) {
                    before = 0;
                }
                if ((int<32>)(hdr.libra.seq - before[31:0]) > 0) {
                    meta.fresh = 1;
                } else if (before[31:0] == hdr.libra.seq) {
                    // A copy of a frame that was applied, without a code, or refused.
                    meta.code = before[63:60];
                    meta.lane = before[59:55];
                }
                if (meta.job.mode == MODE_SYNC) {
                    rounds.read(state, group);
                    if (meta.code == CODE_ROUND || meta.fresh == 1 && state[95:32] & meta.place != 0) {
                        meta.code = CODE_ROUND;
                        meta.value = state[31:0];
                    } else if (meta.fresh == 1) {
                        meta.job.base = meta.job.base + (15w0 ++ state[0:0]) * ROWS;
                    } else if (state[95:32] & meta.place == 0 && state[31:0] != 0) {
                        // The result of the round before, for a worker that has missed it.
                        meta.job.base = meta.job.base + (15w0 ++ ~state[0:0]) * ROWS;
                        meta.want_sum = 1;
                    }
                }
            } else if (meta.all == 1) {
                rounds.read(state, group);
                meta.round = state[31:0];
                rounds.write(group, 64w0 ++ (meta.round + 1));
            }
            if (meta.code != CODE_NONE) {
                // Of a round, or of an earlier copy.
            } else if (meta.fresh == 1 && meta.pair_fault != CODE_NONE) {
                meta.code = meta.pair_fault;
                meta.lane = meta.pair_lane;
            } else if (meta.fresh == 0 && meta.want_sum == 1 && meta.rank_fault != CODE_NONE) {
                meta.code = meta.rank_fault;
                meta.lane = meta.rank_lane;
            } else if (meta.fresh == 1 && meta.step == STEP_CHECK && meta.job.arithmetic == ARITHMETIC_LUT) {
                meta.todo = hdr.stripe.mask;
                applied = 1;
            } else if (meta.fresh == 1 || meta.want_sum == 1) {
#define ADD(j) \
                if (hdr.stripe.mask[j:j] == 1) { \
                    slots##j.read(before, ROW(j)); \
                    sum = (int<64>)before; \
                    if (meta.fresh == 1 && meta.step == STEP_CHECK) { \
                        sum = sum + meta.lane##j.number; \
                        if (meta.job.arithmetic == ARITHMETIC_FIXED) { \
                            if (sum > 0x7fffffff) { \
                                sum = 0x7fffffff; \
                                meta.cut = meta.cut + 1; \
                            } else if (sum < -0x80000000) { \
                                sum = -0x80000000; \
                                meta.cut = meta.cut + 1; \
                            } \
                        } else if ((((int<64>)before ^ sum) & (meta.lane##j.number ^ sum)) < 0) { \
                            meta.code = CODE_OVERFLOW; \
                            meta.lane = j; \
                        } \
                    } \
                    meta.lane##j.sum = sum; \
                }
                EACH_LANE(ADD)
#define WRITE(j) \
                if (hdr.stripe.mask[j:j] == 1) { \
                    slots##j.write(ROW(j), (bit<64>)meta.lane##j.sum); \
                }
                if (meta.fresh == 1 && meta.step == STEP_CHECK && meta.code == CODE_NONE) {
                    EACH_LANE(WRITE)
                    applied = 1;
                }
            }
            if (meta.code == CODE_SLOT_RANGE) {
                meta.value = meta.job.slots;
            }
            if (meta.fresh == 1 && meta.step == STEP_CHECK &&
                (meta.pair_fault == CODE_NONE || meta.code == CODE_ROUND)) {
                // Refused or not: no copy of it is added when the sum is in range again. A fault of
                // the frame's own needs no memory.
                seen.write(meta.entry, meta.code ++ meta.lane ++ meta.sender.generation[22:0] ++ hdr.libra.seq);
            }
            if (applied == 1) {
                if (meta.job.mode == MODE_SYNC) {
                    state[95:32] = state[95:32] | meta.place;
                    rounds.write(group, state);
                    if (state[95:32] == meta.everyone) {
                        meta.all = 1;
                        meta.want_sum = 1;
                    }
                }
                if (meta.todo != 0) {
                    meta.step = STEP_ADD;
                    meta.again = 1;
                } else if (meta.all == 1) {
                    meta.step = STEP_CLEAR;
                    meta.again = 1;
                }
            }
        }
    } }
}
