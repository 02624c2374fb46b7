// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What a process shows is read, and that of all jobs that are asked for is added up; the series of
// other jobs and what a verdict does not need are left out.
func TestParse(t *testing.T) {
	s, err := Parse(strings.NewReader(`# TYPE libra_counters_age_seconds gauge
libra_counters_age_seconds 0.5
# TYPE libra_telemetry_sample_frames gauge
libra_telemetry_sample_frames 64
# TYPE libra_switch_jobs gauge
libra_switch_jobs 3
# TYPE libra_latency_seconds histogram
libra_latency_seconds_bucket{job="3",op="cold",part="total",peer="server 0",worker="1",le="+Inf"} 4
libra_latency_seconds_sum{job="3",op="cold",part="total",peer="server 0",worker="1"} 0.002
libra_latency_seconds_count{job="3",op="cold",part="total",peer="server 0",worker="1"} 4
libra_latency_seconds_bucket{job="3",op="hot",part="aggregator process",peer="",worker="",le="+Inf"} 2
libra_latency_seconds_sum{job="3",op="hot",part="aggregator process",peer="",worker=""} 0.001
libra_latency_seconds_count{job="3",op="hot",part="aggregator process",peer="",worker=""} 2
libra_latency_seconds_bucket{job="5",op="hot",part="aggregator process",peer="",worker="",le="+Inf"} 3
libra_latency_seconds_sum{job="5",op="hot",part="aggregator process",peer="",worker=""} 0.004
libra_latency_seconds_count{job="5",op="hot",part="aggregator process",peer="",worker=""} 3
libra_latency_seconds_bucket{job="4",op="cold",part="total",peer="server 0",worker="1",le="+Inf"} 9
libra_latency_seconds_sum{job="4",op="cold",part="total",peer="server 0",worker="1"} 0.2
libra_latency_seconds_count{job="4",op="cold",part="total",peer="server 0",worker="1"} 9
# TYPE libra_loop_seconds_total counter
libra_loop_seconds_total{job="3",part="calls",worker="1"} 1
libra_loop_seconds_total{job="3",part="frames",worker="1"} 2
libra_loop_seconds_total{job="3",part="sums",worker="1"} 0.25
libra_loop_seconds_total{job="3",part="waiting",worker="1"} 3
# TYPE libra_worker_sent_frames_total counter
libra_worker_sent_frames_total{job="3",op="cold",worker="1"} 10
libra_worker_sent_frames_total{job="3",op="hot",worker="1"} 20
# TYPE libra_worker_repeated_frames_total counter
libra_worker_repeated_frames_total{job="3",op="cold",worker="1"} 1
libra_worker_repeated_frames_total{job="3",op="hot",worker="1"} 2
# TYPE libra_worker_pushes_total counter
libra_worker_pushes_total{job="3",worker="1"} 7
# TYPE libra_worker_hot_pairs_total counter
libra_worker_hot_pairs_total{job="3",worker="1"} 5
# TYPE libra_worker_pushed_hot_pairs_total counter
libra_worker_pushed_hot_pairs_total{job="3",worker="1"} 9
libra_worker_pushed_hot_pairs_total{job="4",worker="1"} 900
# TYPE libra_worker_cold_pairs_total counter
libra_worker_cold_pairs_total{job="3",worker="1"} 3
# TYPE libra_worker_hot_set_share gauge
libra_worker_hot_set_share{job="3",worker="1"} 0.5
# TYPE libra_worker_own_seconds_total counter
libra_worker_own_seconds_total{job="3",worker="1"} 4
# TYPE libra_worker_peer_silence_seconds gauge
libra_worker_peer_silence_seconds{job="3",peer="aggregator",worker="1"} 0
libra_worker_peer_silence_seconds{job="3",peer="server 0",worker="1"} 1.5
# TYPE libra_server_step_arrival_seconds summary
libra_server_step_arrival_seconds_sum{job="3",worker="2"} 0.25
libra_server_step_arrival_seconds_count{job="3",worker="2"} 5
# TYPE libra_server_last_arrivals_total counter
libra_server_last_arrivals_total{job="3",worker="2"} 4
# TYPE libra_server_awaited_seconds gauge
libra_server_awaited_seconds{job="3",worker="1"} 0
libra_server_awaited_seconds{job="3",worker="2"} 2.5
# TYPE libra_agent_clients gauge
libra_agent_clients{job="3"} 0
libra_agent_clients{job="4"} 1
`), 3, 5)
	if err != nil {
		t.Fatal(err)
	}
	want := &Scrape{Age: 500 * ms, Sample: 64, Times: map[Series]Sum{
		{"1", "cold", "total", "server 0"}: {4, 2 * ms}, {Op: "hot", Part: "aggregator process"}: {5, 5 * ms}},
		Loop: Loop{Waiting: 3000 * ms, Calls: 1000 * ms, Sums: 250 * ms, Frames: 2000 * ms}, Gradients: Gradients{9, 3}, HotSetShare: 0.5, Frames: Frames{Sent: 30, Repeated: 3}, Pushes: 7,
		Own: 4000 * ms, Silent: map[string]time.Duration{"server 0": 1500 * ms}, Steps: map[string]Steps{"2": {Count: 5, Last: 4, After: 250 * ms}},
		Awaited: map[string]time.Duration{"1": 0, "2": 2500 * ms}, NoClients: true, OfJob: true, OfOthers: true}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("scrape (-want +got):\n%s", diff)
	}
}

// Another program at the port is noticed.
func TestParseRefusesOthers(t *testing.T) {
	for _, text := range []string{"", "<html>", "# TYPE up gauge\nup 1\n"} {
		if _, err := Parse(strings.NewReader(text), 3); err == nil || !strings.Contains(err.Error(), "another program") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
