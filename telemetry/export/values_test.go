// SPDX-License-Identifier: Apache-2.0

package export

import (
	"reflect"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/transport"
)

// distinct gives each number in a structure, and in those within it, a value of its own.
func distinct(v reflect.Value, next *uint64) {
	if !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			distinct(v.Field(i), next)
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		*next++
		v.SetInt(int64(*next))
	case reflect.Uint16, reflect.Uint32, reflect.Uint64:
		*next++
		v.SetUint(*next)
	}
}

// fill returns a structure whose numbers all differ.
func fill[T any]() *T {
	s, next := new(T), uint64(100)
	distinct(reflect.ValueOf(s).Elem(), &next)
	return s
}

// Each metric has the value that its name says, and no other one.
func TestEachMetricHasItsValue(t *testing.T) {
	sw, j := fill[pb.AggregatorStats](), fill[pb.JobStats]()
	j.Job, j.Held, sw.Jobs = 3, true, []*pb.JobStats{j}
	j.HarvestInterval, j.HarvestHeld = &pb.Timing{LastNs: 5e9, MaxNs: 6e9}, &pb.Timing{LastNs: 7e9, MaxNs: 8e9}
	j.GradientAge = &pb.Timing{LastNs: 9e9, MaxNs: 10e9}
	ch := fill[pb.ChildStats]()
	ch.Control, ch.Answer = "10.0.0.11:7700", &pb.Timing{LastNs: 11e9, MaxNs: 12e9}
	j.Children = []*pb.ChildStats{ch}
	server := fill[pb.ServerStats]()
	w := fill[transport.WorkerStats]()
	c := fill[agent.ClientStats]()
	c.Client = 9
	a := agent.JobStats{Name: "a", Memory: 51, Learning: 52, PairsSent: 53, PairsAdded: 54, Vanished: 55,
		Ended: map[agent.Code]uint64{1: 56, 2: 57}, Clients: []agent.ClientStats{*c}}
	shown := gather(t, func(s *Set) {
		s.AddSwitch(sw)
		s.AddServer(4, server)
		s.AddWorker("5", 6, w, measured())
		s.AddAgent(&agent.Stats{Jobs: []agent.JobStats{a}}, func(string) (string, bool) { return "7", false })
	})
	check := func(labels map[string]string, want map[string]float64) {
		t.Helper()
		for name, expected := range want {
			if got, found := value(shown, name, labels); !found || got != expected {
				t.Errorf("%s%v is %v (%v), want %v", name, labels, got, found, expected)
			}
		}
	}
	check(nil, map[string]float64{
		"libra_switch_jobs": 1, "libra_switch_slots": float64(sw.Slots), "libra_switch_slots_used": float64(sw.SlotsUsed),
		"libra_switch_senders": float64(sw.Senders), "libra_switch_senders_used": float64(sw.SendersUsed),
		"libra_switch_memory_bytes": float64(sw.MemoryBytes), "libra_agent_jobs": 1,
	})
	check(map[string]string{"job": "3"}, map[string]float64{
		"libra_job_held": 1, "libra_job_lease_seconds": float64(j.LeaseMs) / 1e3, "libra_job_epoch": float64(j.Epoch),
		"libra_job_exponent": float64(j.Exponent), "libra_job_workers": float64(j.Workers), "libra_job_senders": float64(j.Senders),
		"libra_job_senders_reserved": float64(j.SendersReserved), "libra_job_slots": float64(j.Slots),
		"libra_job_memory_bytes": float64(j.MemoryBytes), "libra_job_harvests_total": float64(j.Harvests),
		"libra_job_harvest_period_seconds": float64(j.HarvestPeriodUs) / 1e6, "libra_job_harvest_frames": float64(j.HarvestFrames),
		"libra_job_harvest_interval_last_seconds": 5, "libra_job_harvest_interval_max_seconds": 6,
		"libra_job_harvest_held_last_seconds": 7, "libra_job_harvest_held_max_seconds": 8,
	})
	check(map[string]string{"job": "3"}, map[string]float64{"libra_job_children": 1})
	check(map[string]string{"job": "3", "peer": ch.Control}, map[string]float64{
		"libra_job_child_harvests_total":          float64(ch.Harvests),
		"libra_job_child_repeated_harvests_total": float64(ch.Repeated),
		"libra_job_child_broken_streams_total":    float64(ch.BrokenStreams), "libra_job_child_answer_last_seconds": 11,
		"libra_job_child_answer_max_seconds": 12, "libra_job_child_awaited_seconds": float64(ch.AwaitedNs) / 1e9,
	})
	check(map[string]string{"job": "4"}, map[string]float64{
		"libra_server_rows": float64(server.Rows), "libra_server_steps_total": float64(server.Steps),
		"libra_server_harvests_total": float64(server.Harvests),
	})
	for op, f := range map[string]any{"hot": w.Hot, "cold": w.Cold} {
		of := func(field string) float64 {
			v := reflect.ValueOf(f).FieldByName(field)
			if v.CanInt() {
				return float64(v.Int())
			}
			return float64(v.Uint())
		}
		check(map[string]string{"job": "5", "worker": "6", "op": op}, map[string]float64{
			"libra_worker_sent_frames_total": of("Sent"), "libra_worker_acknowledged_frames_total": of("Acked"),
			"libra_worker_covered_frames_total": of("Covered"), "libra_worker_refused_frames_total": of("Refused"),
			"libra_worker_repeated_frames_total": of("Retransmitted"), "libra_worker_probes_total": of("Probes"),
			"libra_worker_backoffs_total": of("Backoffs"), "libra_worker_spurious_frames_total": of("Spurious"),
			"libra_worker_round_trip_seconds":             time.Duration(of("SRTT")).Seconds(),
			"libra_worker_retransmission_timeout_seconds": time.Duration(of("RTO")).Seconds(),
			"libra_worker_in_flight_frames_max":           of("Bound"),
		})
	}
	check(map[string]string{"job": "5", "worker": "6"}, map[string]float64{
		"libra_worker_hot_pairs_total": float64(w.PairsHot), "libra_worker_cold_pairs_total": float64(w.PairsCold),
		"libra_worker_pushed_hot_pairs_total": float64(w.PairsPushed),
		"libra_worker_hot_set_share":          w.HotSetShare, "libra_worker_added_pairs_total": float64(w.PairsAdded),
		"libra_worker_cold_rows_total": float64(w.RowsCold), "libra_worker_numbered_rows_total": float64(w.RowsAt),
		"libra_worker_renamed_rows_total": float64(w.Renamed), "libra_worker_pulled_keys_total": float64(w.KeysPulled),
		"libra_worker_vanished_gradients_total": float64(w.Vanished), "libra_worker_log_frames": float64(w.LogFrames),
		"libra_worker_log_bytes": float64(w.LogBytes), "libra_worker_log_waits_total": float64(w.LogWaits),
		"libra_worker_settled_frames_total": float64(w.Settled), "libra_worker_results_total": float64(w.Results),
		"libra_worker_malformed_frames_total": float64(w.Malformed), "libra_worker_stray_frames_total": float64(w.Stray),
		"libra_worker_unsent_frames_total": float64(w.Link.SendError), "libra_worker_foreign_packets_total": float64(w.Link.Foreign),
		"libra_worker_truncated_packets_total": float64(w.Link.Truncated), "libra_worker_bad_checksum_packets_total": float64(w.Link.BadChecksum),
		"libra_worker_overrun_packets_total": float64(w.Link.Overrun),
	})
	check(map[string]string{"job": "7"}, map[string]float64{
		"libra_agent_memory_bytes": 51, "libra_agent_learning": 52, "libra_agent_ended_sessions_total": 56 + 57, "libra_agent_clients": 1,
		"libra_worker_hot_pairs_total": 53, "libra_worker_added_pairs_total": 54, "libra_worker_vanished_gradients_total": 55,
	})
	check(map[string]string{"job": "7", "peer": "client 9"}, map[string]float64{
		"libra_agent_client_memory_bytes": float64(c.Memory), "libra_agent_client_in_flight_bytes": float64(c.InFlight),
		"libra_agent_client_prepared_bytes": float64(c.Prepared), "libra_agent_client_pushes_total": float64(c.Pushes),
		"libra_agent_client_acknowledged_pushes_total": float64(c.Acknowledged), "libra_agent_client_failed_pushes_total": float64(c.Failed),
		"libra_agent_client_pushed_keys_total": float64(c.KeysPushed), "libra_agent_client_pulls_total": float64(c.Pulls),
		"libra_agent_client_pulled_keys_total": float64(c.KeysPulled),
	})
}
