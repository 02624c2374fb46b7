// SPDX-License-Identifier: Apache-2.0

// The checks of a frame before its pairs are looked at, in the order of docs/wire.md.

// Check looks up who sends, and judges header, admission and body in one chain of
// conditions: on a pipeline, none of them waits for another. A report of a scale is
// refused, unless the architecture takes it.
control Check(inout headers_t hdr, inout state_t meta) {
    Admission() admission;

    apply {
        admission.apply(hdr, meta);
        if (hdr.libra.flags & FLAG_WANT_SUM != 0) {
            meta.want_sum = 1;
        }
        if (!hdr.libra.isValid()) {
            meta.event = EVENT_SHORT;
        } else if (hdr.libra.type == TYPE_ACK || hdr.libra.type == TYPE_ERROR) {
            // Of any version: two aggregators that answer each other's answers
            // would never stop.
            meta.event = EVENT_UNEXPECTED;
        } else if (hdr.libra.version != VERSION) {
            meta.code = CODE_WRONG_VERSION;
            meta.value = (bit<32>)VERSION;
        } else if (hdr.libra.type != TYPE_HOT && hdr.libra.type != TYPE_SCALE) {
            meta.code = CODE_TYPE;
        } else if (meta.job.found == 0) {
            meta.code = CODE_UNKNOWN_JOB;
        } else {
            meta.job_known = 1;
            if (meta.sender.found == 0) {
                meta.code = CODE_UNKNOWN_SENDER;
            } else {
                meta.sender_known = 1;
                if (meta.sender.epoch != hdr.libra.epoch) {
                    meta.code = CODE_WRONG_EPOCH;
                    meta.value = (bit<32>)meta.sender.epoch;
                } else if (hdr.libra.type == TYPE_SCALE) {
                    if (hdr.udp.length != 28) {
                        meta.code = CODE_LENGTH;
                        meta.value = 8;
                    } else {
                        meta.code = CODE_MODE;
                        meta.scale = 1;
                    }
                } else if (!hdr.stripe.isValid()) {
                    meta.code = CODE_LENGTH;
                    meta.value = 1;
                } else if (meta.want_sum == 1 && meta.job.mode != MODE_FETCHADD) {
                    meta.code = CODE_MODE;
                } else if (hdr.libra.flags & FLAG_DENSE != 0 || hdr.stripe.beyond != 0) {
                    meta.code = CODE_LAYOUT;
                } else {
                    meta.intact = 1;
                }
            }
        }
    }
}
