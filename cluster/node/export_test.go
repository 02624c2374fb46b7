// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/telemetry/export"
	"github.com/libra-ina/libra/train"
)

// shownBy returns what a process of the cluster shows at a path; nothing if it cannot be reached.
func shownBy(t *testing.T, p cluster.Process, path string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://" + p.At.String() + path)
	if err != nil {
		t.Errorf("%s: %v", p.Name, err)
		return ""
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK && p.Name != "switch" {
		t.Errorf("%s: %d, %v: %s", p.Name, r.StatusCode, err, text)
	}
	return string(text)
}

// hasSample reports whether a metric in the text format has a value above 0.
func hasSample(text, series string) bool {
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, series+" "); found {
			return strings.TrimSpace(value) != "0"
		}
	}
	return false
}

// TestProcessesShowWhatTheyMeasure trains with a port for telemetry. While the job runs, each
// process shows its metrics; and the records of its workers and its server, joined, are whole rows.
// The weights are those of a training without telemetry.
func TestProcessesShowWhatTheyMeasure(t *testing.T) {
	c := newCluster(t, 2)
	c.Telemetry.Sample = new(1)
	c.Telemetry.Port = freePort(t, c.Switch.Address)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	startSwitch(t, c)
	join := telemetry.NewJoiner()
	metrics := map[string]string{}
	look := func() {
		for _, p := range slices.Backward(c.Processes()) { // the server after its workers
			metrics[p.Name] = shownBy(t, p, "/metrics")
			if p.Name == "switch" {
				continue
			}
			h, records, _, err := export.ReadRecords(strings.NewReader(shownBy(t, p, "/records")))
			if err != nil || h.Process != p.Name || h.Sample != 1 {
				t.Errorf("%+v, %v", h, err)
			}
			for _, r := range records {
				if h.Side == export.WorkerSide {
					join.AddWorker(r)
				} else {
					join.AddServer(r)
				}
			}
		}
	}
	out := trainCluster(t.Context(), t, c, hooks{step: func(id uint16, p train.Progress, _, _ func()) {
		if id == 1 && p.Steps == 5 {
			look()
		}
	}})
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if out.server.WeightsSHA256 != hash(reference(t, c)) {
		t.Error("the weights are not those of the reference")
	}
	for process, want := range map[string]string{
		"switch":   `libra_switch_slots`,
		"ps":       `libra_latency_seconds_count{job="5",op="cold",part="server process",peer="worker 1",worker="1"}`,
		"worker 1": `libra_latency_seconds_count{job="5",op="hot",part="total",peer="aggregator",worker="1"}`,
		"worker 2": `libra_latency_seconds_count{job="5",op="pull",part="total",peer="server 0",worker="2"}`,
	} {
		if !hasSample(metrics[process], want) {
			t.Errorf("%s does not show %s: %s", process, want, metrics[process])
		}
		if !strings.Contains(metrics[process], "libra_counters_age_seconds") {
			t.Errorf("%s does not show the age of its counters", process)
		}
	}
	rows := join.EndRound(nil, true)
	whole := 0
	for _, r := range rows {
		if r.State == telemetry.Whole {
			whole++
			if linux := runtime.GOOS == "linux"; r.Stamped != linux || r.Server != telemetry.NoServer && r.ServerStamped != linux {
				t.Errorf("%+v does not begin with the arrival at the host", r)
			}
			if r.Queue+r.Process+r.ServerQueue+r.ServerProcess+r.Network != r.Total {
				t.Errorf("%+v does not add up", r)
			}
		}
	}
	asked := slices.DeleteFunc(slices.Clone(rows), func(r telemetry.Row) bool { return r.State == telemetry.Resent })
	if whole == 0 || whole*100 < len(asked)*95 || join.Impossible > 0 {
		t.Errorf("%d of %d rows are whole: %+v", whole, len(asked), join.Joined)
	}
}

// Without a port nothing listens, and with one that is taken the training goes on.
func TestTrainingDoesNotNeedItsTelemetryShown(t *testing.T) {
	c := newCluster(t, 1)
	c.Telemetry.Port = freePort(t, c.Switch.Address)
	for _, p := range c.Processes() {
		taken, err := new(Machine).listen(t.Context(), "test", p.At)
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
	}
	startSwitch(t, c)
	if out := mustTrain(t, c); out.server.WeightsSHA256 != hash(reference(t, c)) {
		t.Error("the weights are not those of the reference")
	}
	// A response that is cut off is not taken for a whole one.
	var b bytes.Buffer
	b.WriteString(`{"process":"ps","side":"server","sample":1}` + "\n")
	if _, _, _, err := export.ReadRecords(&b); err == nil {
		t.Error("half a response is read")
	}
}
