// The registers of v1model: one of slots for each lane, and the duplicate filter.
// A frame reads each of them once and writes it once. All lanes are read before any
// is written, because a frame of exact arithmetic whose sum would overflow in one
// lane is refused as a whole; fixed arithmetic needs no such order.

// Aggregate applies a frame that has passed all checks but those that depend on
// what the registers hold, or does what a request of the control plane asks for.
control Aggregate(inout headers_t hdr, inout state_t meta) {
    register<bit<64>>(SENDERS * FILTER) seen; // generation of the admission, number
#define SLOTS(j) register<bit<64>>(2 * ROWS) slots##j;
    EACH_LANE(SLOTS)

    bit<64> before;
    int<64> sum;

    apply { @atomic {
        if (hdr.request.isValid()) {
#define READ_VALUE(j) slots##j.read(hdr.row.value##j, hdr.request.number);
#define CLEAR_VALUE(j) slots##j.write(hdr.request.number, 0);
            EACH_LANE(READ_VALUE)
            if (hdr.request.operation == OPERATION_CLEAR) {
                EACH_LANE(CLEAR_VALUE)
            }
        } else {
            // An entry of an earlier admission counts as empty.
            meta.entry = (bit<32>)meta.sender.index << 10 | hdr.libra.seq & (FILTER - 1);
            seen.read(before, meta.entry);
            if (before[63:32] != meta.sender.generation) {
                before = 0;
            }
            if ((int<32>)(hdr.libra.seq - before[31:0]) > 0) {
                meta.fresh = 1;
            }
            if (meta.fresh == 1 && meta.pair_fault != CODE_NONE) {
                meta.code = meta.pair_fault;
                meta.lane = meta.pair_lane;
            } else if (meta.fresh == 0 && meta.want_sum == 1 && meta.rank_fault != CODE_NONE) {
                meta.code = meta.rank_fault;
                meta.lane = meta.rank_lane;
            } else if (meta.fresh == 1 || meta.want_sum == 1) {
#define ADD(j) \
                if (hdr.stripe.mask[j:j] == 1) { \
                    slots##j.read(before, meta.lane##j.row); \
                    sum = (int<64>)before; \
                    if (meta.fresh == 1) { \
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
                    slots##j.write(meta.lane##j.row, (bit<64>)meta.lane##j.sum); \
                }
                if (meta.fresh == 1 && meta.code == CODE_NONE) {
                    EACH_LANE(WRITE)
                    seen.write(meta.entry, meta.sender.generation ++ hdr.libra.seq);
                }
            }
            if (meta.code == CODE_SLOT_RANGE) {
                meta.value = meta.job.slots;
            }
        }
    } }
}
