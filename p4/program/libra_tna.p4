// SPDX-License-Identifier: Apache-2.0

// The aggregator for TNA (Tofino), with fixed arithmetic: what libra_v1model.p4 does,
// in one pass of the ingress pipeline.

#include <core.p4>
#include <tna.p4>

#define JOBS 64
#define SENDERS 128
#define COUNTER(size, name) Counter<bit<64>, bit<32>>(size, CounterType_t.PACKETS) name

#include "sizes.p4"
#include "headers.p4"
#include "tna/headers.p4"
#include "state.p4"
#include "checksums.p4"
#include "tna/parser.p4"
#include "admission.p4"
#include "checks.p4"
#include "tna/pairs.p4"
#include "tna/aggregate.p4"
#include "answer.p4"
#include "statistics.p4"
#include "forward.p4"

control LibraIngress(inout headers_t hdr, inout state_t meta,
                     in ingress_intrinsic_metadata_t from,
                     in ingress_intrinsic_metadata_from_parser_t parsed,
                     inout ingress_intrinsic_metadata_for_deparser_t deparser,
                     inout ingress_intrinsic_metadata_for_tm_t to) {
    Destination() destination;
    Check() check;
    CheckPairs() check_pairs;
    Aggregate() aggregate;
    Answer() answer;
    Statistics() statistics;
    Forward() forward;

    apply {
        // Everything is looked up and judged before it is known whose frame it is: what
        // waits for nothing shares the first stages.
        destination.apply(hdr, meta);
        check.apply(hdr, meta);
        if (hdr.stripe.isValid()) {
            check_pairs.apply(hdr, meta);
        }

        // An ingress pipeline does not know how long a frame is: what is missing of it
        // shows in the parser.
        bit<16> least = hdr.udp.length + 20;
        bit<16> missing = least |-| hdr.ipv4.length;
        if (meta.local == 0) {
            meta.intact = 0;
            forward.apply(hdr, meta, from.ingress_port);
        } else if (parsed.parser_err != PARSER_ERROR_OK || hdr.udp.length < 8 || missing != 0) {
            meta.intact = 0;
            meta.event = EVENT_TRUNCATED;
        } else if (meta.ipv4_damaged == 1 || meta.udp_damaged == 1 || hdr.udp.checksum == 0) {
            meta.intact = 0;
            meta.event = EVENT_BAD_CHECKSUM;
        }
        if (meta.intact == 1) {
            aggregate.apply(hdr, meta);
        }

        to.bypass_egress = 1;
        if (meta.event == EVENT_REFUSED) {
            answer.apply(hdr, meta);
            meta.answered = 1;
            to.ucast_egress_port = from.ingress_port;
        } else if (meta.local == 1 || meta.drop == 1) {
            deparser.drop_ctl = 1;
        } else if (meta.flood == 1) {
            to.mcast_grp_a = FLOOD_GROUP;
            to.level2_exclusion_id = from.ingress_port; // not back to where it came from
        } else {
            to.ucast_egress_port = meta.port;
        }
        statistics.apply(meta);
    }
}

Pipeline(LibraParser(), LibraIngress(), LibraDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;

Switch(pipe) main;
