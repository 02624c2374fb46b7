// SPDX-License-Identifier: Apache-2.0

// The aggregator for v1model (bmv2's simple_switch).
//
//   parser ─ destination ┬ foreign, or to another host ─ forward ─▶ its port
//                        └ ours ─ checksums ─ header, admission, body ─ pairs
//                                 ─ registers ─ answer ─▶ the port it came from

#include <core.p4>
#include <v1model.p4>

#define COUNTER(size, name) counter(size, CounterType.packets) name

#include "sizes.p4"
#include "headers.p4"
#include "v1model/headers.p4"
#include "state.p4"
#include "checksums.p4"
#include "v1model/parser.p4"
#include "v1model/checksums.p4"
#include "admission.p4"
#include "checks.p4"
#include "v1model/rounds.p4"
#include "v1model/pairs.p4"
#include "v1model/lut.p4"
#include "v1model/aggregate.p4"
#include "v1model/float.p4"
#include "answer.p4"
#include "v1model/answer.p4"
#include "statistics.p4"
#include "forward.p4"

control LibraIngress(inout headers_t hdr, inout state_t meta, inout standard_metadata_t standard) {
    Destination() destination;
    BadChecksum() bad_checksum;
    Check() check;
    Participation() participation;
    CheckPairs() check_pairs;
    Aggregate() aggregate;
    Answer() answer;
    Sums() sums;
    Scale() scale;
    ToAll() to_all;
    Seal() seal;
    Statistics() statistics;
    Forward() forward;

    COUNTER(JOBS * 2, completed); // rounds and scales, by job

    apply {
        bit<32> frame = standard.packet_length - 14;
        meta.event = EVENT_REFUSED;
        if (hdr.request.isValid()) {
            hdr.row.setValid();
        } else if (meta.step != STEP_CHECK) {
            meta.intact = 1; // as the first pass has found
        } else {
            meta.from = standard.ingress_port;
            destination.apply(hdr, meta);
            if (meta.local == 0) {
                forward.apply(hdr, meta, meta.from);
            } else {
                if (hdr.vlan.isValid()) {
                    frame = frame - 4;
                }
                if (standard.parser_error != error.NoError || hdr.udp.length < 8 ||
                    (bit<32>)hdr.ipv4.length > frame || (bit<32>)hdr.udp.length + 20 > (bit<32>)hdr.ipv4.length) {
                    meta.event = EVENT_TRUNCATED;
                } else if (standard.checksum_error == 1 || hdr.udp.checksum == 0) {
                    bad_checksum.apply(hdr, meta);
                } else {
                    check.apply(hdr, meta);
                }
            }
        }

        if (hdr.request.isValid() || meta.scale == 1 ||
            meta.intact == 1 && meta.step == STEP_CHECK && meta.job.mode == MODE_SYNC) {
            participation.apply(hdr, meta);
        }
        if (meta.intact == 1 && meta.step == STEP_CHECK) {
            check_pairs.apply(hdr, meta);
        }
        if (hdr.request.isValid() || meta.intact == 1) {
            aggregate.apply(hdr, meta);
        }

        if (meta.again == 1) {
            resubmit_preserving_field_list(1);
        } else if (hdr.request.isValid()) {
            hdr.response.setValid();
            hdr.response.operation = hdr.request.operation;
            hdr.response.number = hdr.request.number;
            hdr.request.setInvalid();
            standard.egress_spec = CPU_PORT;
        } else {
            if (meta.event == EVENT_REFUSED) {
                answer.apply(hdr, meta);
                standard.egress_spec = meta.from;
                if (hdr.scale.isValid()) {
                    scale.apply(hdr, meta);
                }
                if (meta.all == 1) {
                    completed.count((bit<32>)meta.job.index << 1 | (bit<32>)meta.scale);
                    to_all.apply(hdr, meta);
                    standard.mcast_grp = ALL_GROUP;
                }
                if (hdr.stripe.isValid()) {
                    sums.apply(hdr, meta);
                }
                seal.apply(hdr, meta);
            } else if (meta.local == 1 || meta.drop == 1) {
                mark_to_drop(standard);
            } else if (meta.flood == 1) {
                standard.mcast_grp = FLOOD_GROUP;
            } else {
                standard.egress_spec = meta.port;
            }
            if (meta.scale == 0 || meta.code != CODE_NONE || meta.fresh == 0) {
                statistics.apply(meta);
            }
        }
    }
}

control LibraEgress(inout headers_t hdr, inout state_t meta, inout standard_metadata_t standard) {
    apply {
        if (meta.size != 0) {
            truncate(meta.size);
        }
        // The copies of a group have its number. A flooded frame does not go back to
        // where it came from.
        if (standard.egress_rid == FLOOD_GROUP && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);
        }
    }
}

control LibraCompute(inout headers_t hdr, inout state_t meta) {
    apply {}
}

control LibraDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(LibraParser(), LibraVerify(), LibraIngress(), LibraEgress(), LibraCompute(), LibraDeparser()) main;
