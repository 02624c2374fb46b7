// Who may add: the tables that the control plane fills.

// Destination tells the aggregator's frames from those that other hosts exchange,
// and both from everything else.
control Destination(inout headers_t hdr, inout state_t meta) {
    action local() {
        meta.local = 1;
        meta.foreign = 0;
    }
    action between_hosts() { meta.foreign = 0; }
    action foreign() { meta.foreign = 1; }

    table destinations {
        key = {
            hdr.udp.dst: exact;
            hdr.ipv4.isValid(): ternary;
            hdr.ipv4.dst: ternary;
        }
        actions = { local; between_hosts; foreign; }
        const default_action = foreign();
        size = 4;
    }

    apply {
        meta.local = 0;
        meta.foreign = 1;
        if (hdr.udp.isValid()) {
            destinations.apply();
        }
    }
}

// Admission finds the frame's job and its sender, or the code of the refusal.
control Admission(inout headers_t hdr, inout state_t meta) {
    action serve(bit<8> index, bit<2> mode, bit<2> arithmetic, bit<1> bank, bit<16> base,
                 bit<16> rows, bit<22> more, bit<32> slots, bit<16> bias) {
        meta.job.index = index;
        meta.job.mode = mode;
        meta.job.arithmetic = arithmetic;
        meta.job.bank = bank;
        meta.job.base = base;
        meta.job.rows = rows;
        meta.job.more = more;
        meta.job.slots = slots;
        meta.job.bias = bias;
    }

    table jobs {
        key = { hdr.libra.job: exact; }
        actions = { serve; NoAction; }
        const default_action = NoAction();
        size = JOBS;
    }

    action admit(bit<16> index, bit<32> generation, bit<48> mac, bit<32> ip, bit<16> port, bit<16> epoch) {
        meta.sender.index = index;
        meta.sender.generation = generation;
        meta.sender.mac = mac;
        meta.sender.ip = ip;
        meta.sender.port = port;
        meta.sender.epoch = epoch;
    }

    table senders {
        key = {
            hdr.libra.job: exact;
            hdr.libra.sender: exact;
        }
        actions = { admit; NoAction; }
        const default_action = NoAction();
        size = SENDERS;
    }

    apply {
        if (!jobs.apply().hit) {
            meta.code = CODE_UNKNOWN_JOB;
        } else {
            meta.job_known = 1;
            if (!senders.apply().hit || meta.sender.mac != hdr.ethernet.src ||
                meta.sender.ip != hdr.ipv4.src || meta.sender.port != hdr.udp.src) {
                meta.code = CODE_UNKNOWN_SENDER;
            } else {
                meta.sender_known = 1;
                if (meta.sender.epoch != hdr.libra.epoch) {
                    meta.code = CODE_WRONG_EPOCH;
                    meta.value = (bit<32>)meta.sender.epoch;
                }
            }
        }
    }
}
