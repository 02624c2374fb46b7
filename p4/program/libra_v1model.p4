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
#include "v1model/pairs.p4"
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
    CheckPairs() check_pairs;
    Aggregate() aggregate;
    Answer() answer;
    Sums() sums;
    Seal() seal;
    Statistics() statistics;
    Forward() forward;

    apply {
        bit<32> size;
        bit<32> frame = standard.packet_length - 14;
        meta.event = EVENT_REFUSED;
        if (hdr.request.isValid()) {
            hdr.row.setValid();
        } else {
            destination.apply(hdr, meta);
            if (meta.local == 0) {
                forward.apply(hdr, meta, standard.ingress_port);
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
                if (meta.intact == 1) {
                    check_pairs.apply(hdr, meta);
                }
            }
        }

        if (hdr.request.isValid() || meta.intact == 1) {
            aggregate.apply(hdr, meta);
        }

        if (hdr.request.isValid()) {
            hdr.response.setValid();
            hdr.response.operation = hdr.request.operation;
            hdr.response.number = hdr.request.number;
            hdr.request.setInvalid();
            standard.egress_spec = CPU_PORT;
        } else {
            if (meta.event == EVENT_REFUSED) {
                answer.apply(hdr, meta);
                if (hdr.stripe.isValid()) {
                    sums.apply(hdr, meta);
                }
                seal.apply(hdr, size);
                truncate(size);
                standard.egress_spec = standard.ingress_port;
            } else if (meta.local == 1 || meta.drop == 1) {
                mark_to_drop(standard);
            } else if (meta.flood == 1) {
                standard.mcast_grp = FLOOD_GROUP;
            } else {
                standard.egress_spec = meta.port;
            }
            statistics.apply(meta);
        }
    }
}

control LibraEgress(inout headers_t hdr, inout state_t meta, inout standard_metadata_t standard) {
    apply {
        // A flooded frame does not go back to where it came from.
        if (standard.egress_rid != 0 && standard.egress_port == standard.ingress_port) {
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
