// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/transport"
)

var quiet = slog.New(slog.DiscardHandler)

// gather returns the families that a process with the values shows.
func gather(t *testing.T, collect func(*Set)) []*dto.MetricFamily {
	t.Helper()
	e := &Exporter{started: time.Now(), limits: newLimits(), cfg: Config{Collect: func(s *Set) time.Duration {
		collect(s)
		return time.Second
	}}}
	return gatherFrom(t, e)
}

func gatherFrom(t *testing.T, e *Exporter) []*dto.MetricFamily {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(e.collect())
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// series is the number of series in the text format.
func series(all []*dto.MetricFamily) (n int) {
	for _, f := range all {
		for _, m := range f.Metric {
			switch {
			case m.Histogram != nil:
				n += 3
			case m.Summary != nil:
				n += 2
			default:
				n++
			}
		}
	}
	return n
}

// value returns the value of a series: a counter's or gauge's, or the number of times.
func value(all []*dto.MetricFamily, name string, labels map[string]string) (v float64, found bool) {
	for _, f := range all {
		for _, m := range f.Metric {
			own := map[string]string{}
			for _, l := range m.Label {
				own[l.GetName()] = l.GetValue()
			}
			fits := f.GetName() == name
			for l, want := range labels {
				fits = fits && own[l] == want
			}
			if !fits {
				continue
			}
			found = true
			v += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return v, found
}

// everything adds all that a switch, a server, a worker and an agent show.
func everything(s *Set) {
	s.AddSwitch(switchOf(2))
	s.AddServer(1, &pb.ServerStats{Rows: 5, Steps: 6, Harvests: 7, Counters: map[string]uint64{"cold_frames": 8}})
	s.AddServerTimes(1, measured(telemetry.Worker(1), telemetry.Worker(2)))
	s.AddArrivals(1, []control.Arrivals{{Worker: 1, Steps: 5}, {Worker: 2, Steps: 5, Last: 4, After: time.Second, Awaited: 3 * time.Second}})
	s.AddWorker("1", 1, &transport.WorkerStats{Pushes: 6, Own: 2 * time.Second, SilentCold: []time.Duration{0, time.Second}}, measured(telemetry.Server(0), telemetry.Aggregator))
	s.AddAgent(agentOf(1, 2), func(string) (string, bool) { return "1", true })
}

func switchOf(jobs int) *pb.AggregatorStats {
	st := &pb.AggregatorStats{Slots: 9, Counters: map[string]uint64{"passed": 3, "refused_unknown_job": 2, "refused_not_finite": 5}}
	for i := range jobs {
		st.Jobs = append(st.Jobs, &pb.JobStats{
			Job: uint32(i), Held: true, Harvests: 4, HarvestInterval: &pb.Timing{Count: 2, MeanNs: 3e9, LastNs: 4e9, MaxNs: uint64(i)},
			Counters:  map[string]uint64{"applied": 10, "refused_wrong_epoch": 1},
			Children:  []*pb.ChildStats{{Control: "10.0.0.11:7700", Harvests: 3}},
			Latencies: []*pb.Latency{{Op: "hot", Part: "aggregator process", Peer: "all", SumNs: 30, First: -200, Counts: []uint64{1, 2}}},
		})
	}
	return st
}

func agentOf(jobs, clients int) *agent.Stats {
	st := &agent.Stats{Refused: map[agent.Code]uint64{4: 1, 5: 2}}
	for i := range jobs {
		j := agent.JobStats{Name: fmt.Sprint("job ", i), PairsSent: 1}
		for c := range clients {
			j.Clients = append(j.Clients, agent.ClientStats{Client: uint32(c), Pushes: 3})
		}
		st.Jobs = append(st.Jobs, j)
	}
	return st
}

// busyLoop is a loop that has waited for 7 of 10 seconds.
type busyLoop struct{}

func (busyLoop) Load() telemetry.Load {
	return telemetry.Load{Total: 10 * time.Second, Waiting: 7 * time.Second, Calls: time.Second}
}
func (busyLoop) AddSums(fn func()) { fn() }

// measured returns a recorder with one time of each kind of frame and part, for each peer.
func measured(peers ...telemetry.Peer) *telemetry.Recorder {
	r := telemetry.NewRecorder(1, nil, nil)
	r.SetLoop(busyLoop{})
	for _, p := range peers {
		for _, op := range []telemetry.Op{telemetry.Cold, telemetry.Pull, telemetry.Find} {
			for _, part := range []telemetry.Part{telemetry.ServerQueue, telemetry.ServerProcess} {
				r.Time(telemetry.Key{Op: op, Part: part, Peer: p}, 3*time.Microsecond)
			}
		}
	}
	return r
}

// TestMetricsKeepTheRulesOfPrometheus lints all metrics, and looks at their labels.
func TestMetricsKeepTheRulesOfPrometheus(t *testing.T) {
	all := gather(t, everything)
	problems, err := promlint.NewWithMetricFamilies(all).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	names := map[string]bool{}
	for _, f := range all {
		names[f.GetName()] = true
		for _, l := range f.Metric[0].Label {
			if !slices.Contains([]string{"job", "peer", "worker", "op", "part"}, l.GetName()) {
				t.Errorf("%s has the label %s", f.GetName(), l.GetName())
			}
		}
	}
	for _, f := range Families() {
		if !names[f.Name] && !strings.Contains(f.Name, CounterName) {
			t.Errorf("no process shows %s", f.Name)
		}
	}
	for _, c := range []struct {
		name   string
		labels map[string]string
		want   float64
	}{
		{"libra_switch_passed_total", nil, 3}, {"libra_switch_refused_frames_total", nil, 7}, {"libra_switch_refused_unknown_job_total", nil, 2},
		{"libra_job_applied_total", map[string]string{"job": "1"}, 10}, {"libra_job_refused_frames_total", map[string]string{"job": "0"}, 1},
		{"libra_server_cold_frames_total", map[string]string{"job": "1"}, 8}, {"libra_agent_refused_clients_total", nil, 3},
		{"libra_latency_seconds", map[string]string{"worker": "2", "peer": "worker 2", "op": "pull"}, 2},
		{"libra_latency_seconds", map[string]string{"worker": "1", "peer": "aggregator"}, 6},
		{"libra_agent_client_pushes_total", map[string]string{"peer": "client 1"}, 3}, {"libra_export_series_left_out", nil, 0},
		{"libra_counters_age_seconds", nil, 1}, {"libra_worker_pushes_total", map[string]string{"worker": "1"}, 6},
		{"libra_loop_seconds_total", map[string]string{"worker": "", "part": "frames"}, 2},
		{"libra_loop_seconds_total", map[string]string{"worker": "1", "part": "waiting"}, 7},
		{"libra_worker_own_seconds_total", nil, 2}, {"libra_worker_peer_silence_seconds", map[string]string{"peer": "server 1"}, 1},
		{"libra_server_last_arrivals_total", map[string]string{"job": "1", "worker": "2"}, 4},
		{"libra_server_awaited_seconds", map[string]string{"job": "1", "worker": "2"}, 3},
	} {
		if got, found := value(all, c.name, c.labels); got != c.want || !found {
			t.Errorf("%s%v is %v (%v), want %v", c.name, c.labels, got, found, c.want)
		}
	}
}

// TestSeriesAreBounded shows a server of 1,000 workers, a switch with 256 jobs of which each has
// all refusals, and an agent with 256 jobs of 100 clients: nothing is left out, and what has no
// series of its own is in those of other.
func TestSeriesAreBounded(t *testing.T) {
	var workers []telemetry.Peer
	for i := range uint16(1000) {
		workers = append(workers, telemetry.Worker(i+1))
	}
	times, one := measured(workers...), measured(telemetry.Server(0))
	var arrived []control.Arrivals
	for i := range uint16(1000) {
		arrived = append(arrived, control.Arrivals{Worker: i + 1, Steps: 1})
	}
	sw := switchOf(256)
	for i, j := range sw.Jobs {
		for code := range 20 {
			j.Counters[fmt.Sprint("refused_", code)] = uint64(i)
		}
	}
	for name, c := range map[string]struct {
		collect func(*Set)
		family  string
		all     float64 // of the family
		other   map[string]string
	}{
		"server": {func(s *Set) { s.AddServer(1, &pb.ServerStats{}); s.AddServerTimes(1, times); s.AddArrivals(1, arrived) },
			"libra_latency_seconds", 6000, map[string]string{"peer": "other"}},
		"switch": {func(s *Set) { s.AddSwitch(sw) }, "libra_job_applied_total", 2560, map[string]string{"job": "other"}},
		"agent": {func(s *Set) {
			for i := range 256 {
				s.AddWorker(fmt.Sprint(i), 7, &transport.WorkerStats{SilentCold: make([]time.Duration, 2)}, one)
			}
			s.AddAgent(agentOf(256, 100), func(name string) (string, bool) { return strings.TrimPrefix(name, "job "), true })
		}, "libra_agent_client_pushes_total", 3 * 25600, map[string]string{"peer": "other"}},
	} {
		t.Run(name, func(t *testing.T) {
			all := gather(t, c.collect)
			if n := series(all); n > maxSeries {
				t.Errorf("%d series", n)
			}
			if left, _ := value(all, "libra_export_series_left_out", nil); left != 0 {
				t.Errorf("%v series are left out", left)
			}
			if got, _ := value(all, c.family, nil); got != c.all {
				t.Errorf("%s is %v in all, want %v", c.family, got, c.all)
			}
			if got, found := value(all, c.family, c.other); !found || got >= c.all {
				t.Errorf("%v of %v are other's", got, c.all)
			}
		})
	}
	// Whatever else there may be.
	all := gather(t, func(s *Set) {
		for i := range 3000 {
			s.add(agentMemory, 1, fmt.Sprint(i))
		}
	})
	n, left := series(all), 0.0
	left, _ = value(all, "libra_export_series_left_out", nil)
	if n != maxSeries || left != 3000+7-maxSeries {
		t.Errorf("%d series, %v left out", n, left)
	}
	if _, found := value(all, "libra_counters_age_seconds", nil); !found {
		t.Error("what the process says of itself is left out")
	}
}

// A job that has no series of its own gets none when another ends: its counter would begin anew,
// and that of the others run backwards.
func TestOthersStayOthers(t *testing.T) {
	l := newLimits()
	scrape := func(names ...string) (labels []string) {
		for _, n := range names {
			labels = append(labels, l.label("job", n, 2))
		}
		l.endScrape()
		return labels
	}
	for _, c := range []struct{ names, want string }{
		{"1 2 3", "1 2 other"}, {"2 3", "2 other"}, {"2 3 4", "2 other 4"}, {"4 1", "4 other"}, {"3 4 1", "3 4 other"},
	} {
		if got := strings.Join(scrape(strings.Fields(c.names)...), " "); got != c.want {
			t.Errorf("%s become %s, want %s", c.names, got, c.want)
		}
	}
}

// The buckets that Prometheus gets are those in which times were counted.
func TestBucketsAreThoseOfPrometheus(t *testing.T) {
	r := telemetry.NewRecorder(1, nil, nil)
	at := telemetry.Key{Op: telemetry.Cold, Part: telemetry.ServerQueue, Peer: telemetry.Worker(1)}
	ideal := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ideal", Help: "x", NativeHistogramBucketFactor: 1.1,
		NativeHistogramZeroThreshold: prometheus.NativeHistogramZeroThresholdZero})
	for d := time.Duration(1); d < 10*time.Second; d += d/7 + 1 {
		r.Time(at, d)
		ideal.Observe(d.Seconds())
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(ideal)
	want, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range gather(t, func(s *Set) { s.AddServerTimes(1, r) }) {
		if f.GetName() != latency.Name {
			continue
		}
		got, want := f.Metric[0].Histogram, want[0].Metric[0].Histogram
		if got.GetSchema() != want.GetSchema() || got.GetSampleCount() != want.GetSampleCount() ||
			math.Abs(got.GetSampleSum()-want.GetSampleSum()) > 1e-6 {
			t.Errorf("%v, want %v", got, want)
		}
		if diff := cmp.Diff(fmt.Sprint(want.PositiveSpan, want.PositiveDelta), fmt.Sprint(got.PositiveSpan, got.PositiveDelta)); diff != "" {
			t.Errorf("buckets (-want +got):\n%s", diff)
		}
		return
	}
	t.Error("the histogram is not shown")
}

// TestTableIsComplete holds the table of docs/telemetry.md against the metrics.
func TestTableIsComplete(t *testing.T) {
	page, err := os.ReadFile("../../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, f := range Families() {
		want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s |", f.Name, f.Kind, strings.Join(f.Labels, ", "), f.Help))
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| `libra_") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-metrics +page):\n%s", diff)
	}
}
