// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/telemetry"
)

const packaging = "../../packaging/prometheus"

// tool returns the path of a program of Prometheus, or skips the test.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (apt install prometheus): %v", name, err)
	}
	return path
}

// TestAlerts has promtool raise each alert from its cause, and none from a job that runs well.
func TestAlerts(t *testing.T) {
	promtool := tool(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "libra-alerts.yml"}, {"test", "rules", "libra-alerts-test.yml"}, {"check", "config", "prometheus.yml"},
	} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = packaging
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// The rules ask for metrics that there are: Prometheus takes a wrong name for one that has no value
// yet. Each rule has a test of its cause, and one that it is silent.
func TestAlertsNameMetrics(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(packaging, "libra-alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(packaging, "libra-alerts-test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"libra_server_overrun_total": true, "libra_server_lost_answers_total": true} // by COUNTER
	for _, f := range Families() {
		known[f.Name] = true
	}
	for _, text := range []string{string(rules), string(tests)} {
		for _, name := range regexp.MustCompile(`libra_[a-z_]+`).FindAllString(text, -1) {
			if !known[name] && !strings.HasSuffix(name, "_refused_") {
				t.Errorf("there is no metric %s", name)
			}
		}
	}
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	for _, a := range alerts {
		if n := len(regexp.MustCompile(`alertname: `+a[1]+`\b`).FindAllString(string(tests), -1)); n != 2 {
			t.Errorf("%s has %d tests, want 2", a[1], n)
		}
	}
	if len(alerts) != 9 {
		t.Errorf("%d alerts", len(alerts))
	}
}

// TestPrometheusScrapes runs Prometheus, and compares quantiles of the histograms that it has read
// with those of the process: they are in the same bucket.
func TestPrometheusScrapes(t *testing.T) {
	program := tool(t, "prometheus")
	r := telemetry.NewRecorder(1, nil, nil)
	at := telemetry.Key{Op: telemetry.Pull, Part: telemetry.ServerQueue, Peer: telemetry.Worker(3)}
	for d := time.Microsecond; d < time.Second; d += d / 50 {
		r.Time(at, d)
	}
	_, process := start(t, Config{Collect: func(s *Set) time.Duration { s.AddServerTimes(1, r); return 0 }})
	dir, own := t.TempDir(), freePort(t)
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 200ms}\nscrape_configs: [{job_name: libra, honor_labels: true, static_configs: [{targets: [%q]}]}]\n", process)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+own.String(), "--enable-feature=native-histograms", "--log.level=error")
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	defer http.DefaultClient.CloseIdleConnections()
	query := func(q string) (string, bool) {
		resp, err := http.Get("http://" + own.String() + "/api/v1/query?query=" + url.QueryEscape(q))
		if err != nil {
			return "", false
		}
		defer resp.Body.Close()
		var answer struct {
			Data struct {
				Result []struct{ Value [2]any }
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || len(answer.Data.Result) != 1 {
			return "", false
		}
		value, ok := answer.Data.Result[0].Value[1].(string)
		return value, ok
	}
	const selector = `libra_latency_seconds{job="1",worker="3",op="pull",part="server queue",peer="worker 3"}`
	d := r.Series()[0].Distribution
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
		ask := fmt.Sprintf("histogram_quantile(%g, %s)", q, selector)
		text, ok := query(ask)
		for end := time.Now().Add(30 * time.Second); !ok; text, ok = query(ask) {
			if time.Now().After(end) {
				t.Fatalf("Prometheus has no %s: %s", ask, &log)
			}
			time.Sleep(50 * time.Millisecond)
		}
		got, err := strconv.ParseFloat(text, 64)
		want := d.Quantile(q).Seconds()
		if err != nil || got < want/1.0905 || got > want*1.0905 { // the width of a bucket
			t.Errorf("%s is %v, want %v", ask, got, want)
		}
	}
	if count, ok := query("histogram_count(" + selector + ")"); !ok || count != fmt.Sprint(d.Count()) {
		t.Errorf("%s times, want %d", count, d.Count())
	}
}
