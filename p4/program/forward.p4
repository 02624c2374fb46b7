// SPDX-License-Identifier: Apache-2.0

// What becomes of the frames that are not the aggregator's: a switch without
// anything else of a switch. Who has one puts it here.

// The multicast groups of all ports that have hosts behind them: for frames, which do
// not go back to where they came from, and for answers to all senders of a job.
const bit<16> FLOOD_GROUP = 1;
@noWarn("unused") const bit<16> ALL_GROUP = 2;

// Forward says where a frame goes that came in by a port.
control Forward(inout headers_t hdr, inout state_t meta, in bit<9> from) {
    action send(bit<9> port) { meta.port = port; }
    action flood() { meta.flood = 1; }
    action home() {}

    // Behind which port a host is. Frames for others go to all ports.
    table hosts {
        key = { hdr.ethernet.dst: exact; }
        actions = { send; flood; }
        const default_action = flood();
        size = HOSTS;
    }

    // The same, for the source: a frame that comes in by another port than its
    // sender's is not counted as one that the aggregator would send on by itself.
    table homes {
        key = {
            hdr.ethernet.src: exact;
            from: exact @name("ingress_port");
        }
        actions = { home; NoAction; }
        const default_action = NoAction();
        size = HOSTS;
    }

    apply {
        meta.event = EVENT_PASSED;
        if (!hdr.ethernet.isValid()) {
            meta.drop = 1;
        } else if (hosts.apply().hit) {
            if (meta.port == from) {
                meta.drop = 1; // it is where it belongs
            } else if (meta.foreign == 0 && !hdr.vlan.isValid()) {
                if (homes.apply().hit) {
                    meta.event = EVENT_FORWARDED;
                }
            }
        }
    }
}
