// SPDX-License-Identifier: Apache-2.0

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

// Admission looks up the frame's job, and its sender by all that identifies it.
control Admission(inout headers_t hdr, inout state_t meta) {
    action serve(bit<8> index, bit<2> mode, bit<2> arithmetic, bit<1> bank, bit<16> base,
                 bit<16> rows, bit<22> more, bit<32> slots, bit<16> bias) {
        meta.job.found = 1;
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

    action admit(bit<16> index, bit<32> generation, bit<16> epoch) {
        meta.sender.found = 1;
        meta.sender.index = index;
        meta.sender.generation = generation;
        meta.sender.epoch = epoch;
    }

    table senders {
        key = {
            hdr.libra.job: exact;
            hdr.libra.sender: exact;
            hdr.ethernet.src: exact;
            hdr.ipv4.src: exact;
            hdr.udp.src: exact;
        }
        actions = { admit; NoAction; }
        const default_action = NoAction();
        size = SENDERS;
    }

    apply {
        meta.job.found = 0;
        meta.sender.found = 0;
        if (hdr.libra.isValid()) {
            jobs.apply();
            senders.apply();
        }
    }
}
