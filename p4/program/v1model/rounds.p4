// SPDX-License-Identifier: Apache-2.0

// What workers do together: the rounds of sync mode, and the scale that they agree on
// (docs/wire.md, Rounds and Scale). The frame that completes a round takes two more passes
// when it is added: one clears the row of the bank of the next round, and one begins that
// round, and answers all. So no frame is added to a row that is cleared later.

// Participation judges what frames of such jobs have to be beside all others, and takes
// reports of scales.
control Participation(inout headers_t hdr, inout state_t meta) {
    // By job: the iteration in progress, who has reported, the largest exponent, and the
    // decision before.
    register<bit<112>>(JOBS) scales;

    // The place of a sender in the rounds of its job, and all places, one bit each.
    action take_part(bit<64> place, bit<64> everyone) {
        meta.place = place;
        meta.everyone = everyone;
    }

    table participants {
        key = {
            hdr.libra.job: exact @name("job");
            hdr.libra.sender: exact @name("sender");
        }
        actions = { take_part; NoAction; }
        const default_action = NoAction();
        size = SENDERS;
    }

    apply { @atomic {
        bit<112> state;
        bit<22> used = 0x3fffff;

        if (hdr.request.isValid()) {
            if (hdr.request.operation == OPERATION_FORGET) {
                scales.write(hdr.request.number, 0);
            }
        } else {
            participants.apply();
            if (meta.scale == 1) {
                meta.want_sum = 0;
                if (meta.job.arithmetic == ARITHMETIC_FIXED && meta.everyone != 0) {
                    scales.read(state, (bit<32>)meta.job.index);
                    bit<32> iteration = state[111:80];
                    bit<64> reported = state[79:16];
                    bit<8> largest = state[15:8];
                    meta.code = CODE_NONE;
                    if (hdr.scale.exponent == 0xff) {
                        meta.code = CODE_NOT_FINITE;
                    } else if (iteration != 0 && hdr.scale.iteration == iteration - 1) {
                        meta.decided = 1;
                        hdr.scale.exponent = state[7:0];
                    } else if (hdr.scale.iteration != iteration) {
                        meta.code = CODE_ROUND;
                        meta.value = iteration;
                    } else if (reported & meta.place == 0) {
                        meta.fresh = 1;
                        reported = reported | meta.place;
                        if (largest < hdr.scale.exponent) {
                            largest = hdr.scale.exponent;
                        }
                        if (reported == meta.everyone) {
                            meta.decided = 1;
                            meta.all = 1;
                            meta.round = iteration;
                            hdr.scale.exponent = largest;
                            scales.write((bit<32>)meta.job.index, (iteration + 1) ++ 72w0 ++ largest);
                        } else {
                            scales.write((bit<32>)meta.job.index, iteration ++ reported ++ largest ++ state[7:0]);
                        }
                    }
                    hdr.scale.zero = 0;
                }
            } else {
                // A contribution is a whole row of the job.
                if (hdr.stripe.slot0 == meta.job.rows) {
                    used = meta.job.more;
                }
                if (hdr.stripe.mask[0:0] == 0) {
                    meta.code = CODE_LAYOUT;
                } else if (hdr.stripe.slot0 > meta.job.rows || used == 0) {
                    meta.code = CODE_SLOT_RANGE;
                    meta.value = meta.job.slots;
                } else if (hdr.stripe.mask != used) {
                    meta.code = CODE_LAYOUT;
                } else {
#define SAME_ROW(j) \
                    if (used[j:j] == 1 && hdr.stripe.slot##j != hdr.stripe.slot0) { \
                        meta.code = CODE_LAYOUT; \
                    }
                    EACH_LANE(SAME_ROW)
                }
                if (meta.code != CODE_NONE) {
                    meta.intact = 0;
                }
            }
        }
    } }
}

// ToAll makes an answer one to all senders of the job: to a multicast address of the
// job's (wire.AllOf).
control ToAll(inout headers_t hdr, inout state_t meta) {
    apply {
        hdr.ethernet.dst = 32w0x01005e4c ++ hdr.libra.job;
        hdr.ipv4.dst = 16w0xef4c ++ hdr.libra.job;
        hdr.udp.dst = hdr.udp.src;
        hdr.libra.flags = hdr.libra.flags | FLAG_ALL;
        hdr.libra.sender = ALL_SENDERS;
        hdr.libra.seq = meta.round;
    }
}

// Scale turns the answer to a report into one with what is decided, if it is.
control Scale(inout headers_t hdr, inout state_t meta) {
    apply {
        if (meta.code == CODE_NONE) {
            hdr.libra.flags = FLAG_SCALE;
        }
        if (meta.decided == 1) {
            hdr.libra.flags = FLAG_SCALE | FLAG_SUM;
            hdr.udp.length = 28;
            hdr.ipv4.length = 48;
        } else {
            hdr.scale.setInvalid();
        }
    }
}
