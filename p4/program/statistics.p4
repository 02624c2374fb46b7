// SPDX-License-Identifier: Apache-2.0

// What is counted. The control plane reads the counters and knows what they were
// when a job, a bank or an admission began.

// Frames are counted by how many pairs they carry and how many sums they cut: that
// makes two numbers of one counter, the frames and, weighted, the pairs. Each counter
// counts in one place, as a pipeline has it. COUNTER is the architecture's.
control Statistics(inout state_t meta) {
    COUNTER(32, events);
    COUNTER(JOBS * 32, job_events);
    COUNTER(JOBS * 64, applied); // by job, bank and pairs
    COUNTER(JOBS * 32, saturated); // by job and cut sums
    COUNTER(SENDERS * 2, sender_events);
    COUNTER(SENDERS * 32, sender_applied); // by sender and pairs

    apply {
        bit<32> job = (bit<32>)meta.job.index;
        bit<32> sender = (bit<32>)meta.sender.index;
        bit<32> cell = meta.event;
        bit<32> sender_cell = EVENT_DUPLICATE;
        if (meta.event == EVENT_REFUSED) {
            cell = EVENT_REFUSED + (bit<32>)meta.code;
            if (meta.code == CODE_NONE) {
                cell = EVENT_DUPLICATE;
            } else {
                sender_cell = EVENT_SENDER_REFUSED;
            }
        }
        if (meta.event != EVENT_REFUSED || meta.job_known == 0) {
            events.count(cell);
        } else if (meta.code == CODE_NONE && meta.fresh == 1) {
            applied.count(job << 6 | (bit<32>)meta.job.bank << 5 | (bit<32>)meta.pairs);
            sender_applied.count(sender << 5 | (bit<32>)meta.pairs);
            saturated.count(job << 5 | (bit<32>)meta.cut);
        } else {
            job_events.count(job << 5 | cell);
            if (meta.sender_known == 1) {
                sender_events.count(sender << 1 | sender_cell);
            }
        }
    }
}
