// What is counted. The control plane reads the counters and knows what they were
// when a job, a bank or an admission began.

// Frames are counted by how many pairs they carry and how many sums they cut: that
// makes two numbers of one counter, the frames and, weighted, the pairs.
control Statistics(inout state_t meta) {
    counter(32, CounterType.packets) events;
    counter(JOBS * 32, CounterType.packets) job_events;
    counter(JOBS * 64, CounterType.packets) applied; // by job, bank and pairs
    counter(JOBS * 32, CounterType.packets) saturated; // by job and cut sums
    counter(SENDERS * 2, CounterType.packets) sender_events;
    counter(SENDERS * 32, CounterType.packets) sender_applied; // by sender and pairs

    apply {
        bit<32> job = (bit<32>)meta.job.index;
        bit<32> sender = (bit<32>)meta.sender.index;
        if (meta.event != EVENT_REFUSED) {
            events.count(meta.event);
        } else if (meta.job_known == 0) {
            events.count(EVENT_REFUSED + (bit<32>)meta.code);
        } else if (meta.code != CODE_NONE) {
            job_events.count(job << 5 | (EVENT_REFUSED + (bit<32>)meta.code));
            if (meta.sender_known == 1) {
                sender_events.count(sender << 1 | EVENT_SENDER_REFUSED);
            }
        } else if (meta.fresh == 0) {
            job_events.count(job << 5 | EVENT_DUPLICATE);
            sender_events.count(sender << 1 | EVENT_DUPLICATE);
        } else {
            applied.count(job << 6 | (bit<32>)meta.job.bank << 5 | (bit<32>)meta.pairs);
            sender_applied.count(sender << 5 | (bit<32>)meta.pairs);
            saturated.count(job << 5 | (bit<32>)meta.cut);
        }
    }
}
