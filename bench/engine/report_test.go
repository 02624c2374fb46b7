// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// samplesOf makes samples with the given rates.
func samplesOf(rates ...float64) []Sample {
	var s []Sample
	for _, r := range rates {
		s = append(s, Sample{Figures: Figures{PPS: r, Cost: Cost{NsUser: r / 10}}})
	}
	return s
}

func TestSummary(t *testing.T) {
	samples := samplesOf(300, 100, 200)
	for i := range samples {
		v := float64(i)
		samples[i].P50ns, samples[i].P99ns = &v, &v
		samples[i].drops = map[string]uint64{"ring full": 2, "never": 0}
	}
	r := newResult(Echo, 190, UDP, samples)
	if r.PPS != 200 || r.PPSMin != 100 || r.PPSMax != 300 || r.NsUser != 20 || *r.P50ns != 1 {
		t.Errorf("summary %+v", r)
	}
	if diff := cmp.Diff(map[string]uint64{"ring full": 6}, r.Drops); diff != "" {
		t.Error(diff)
	}
}

// A machine that slows down between rounds changes the rates, not the ratios.
func TestRatiosArePairedByRound(t *testing.T) {
	var r Report
	r.addResults([]Result{
		newResult(Echo, 190, Libra, samplesOf(1000, 10, 100)),
		newResult(Echo, 190, UDP, samplesOf(500, 5, 50)),
		newResult(Echo, 190, Asavie, samplesOf(0, 0, 0)),
	})
	want := []Ratio{
		{Test: Echo, Size: 190, Baseline: UDP, OfMedians: 2, Paired: 2, PairedMin: 2, PairedMax: 2},
		{Test: Echo, Size: 190, Baseline: Asavie}, // not infinite: JSON could not hold it
	}
	if diff := cmp.Diff(want, r.Ratios); diff != "" {
		t.Error(diff)
	}
	r = Report{}
	r.addResults([]Result{newResult(Echo, 190, UDP, samplesOf(500))})
	if len(r.Results) != 1 || r.Ratios != nil {
		t.Errorf("without Libra there are %d results and the ratios %v", len(r.Results), r.Ratios)
	}
}

func TestTargets(t *testing.T) {
	low, high := 0.6, 0.8
	r := Report{Ratios: []Ratio{
		{Test: Echo, Size: 190, Baseline: UDP, OfMedians: 5.5},
		{Test: Echo, Size: 1414, Baseline: UDP, OfMedians: 1}, // no target at this size
		{Test: Transmit, Size: 1414, Baseline: Libxdp, OfMedians: 0.9},
		{Test: RequestResponse, Size: 64, Baseline: UDP, P50: &low, P99: &high},
	}}
	r.judgeResults()
	want := []Target{
		{Transmit, 1414, Libxdp, "rate", experiment.AtLeast(0.97, 0.9)},
		{Echo, 190, UDP, "rate", experiment.AtLeast(5, 5.5)},
		{RequestResponse, 64, UDP, "p50", experiment.AtMost(0.7, 0.6)},
		{RequestResponse, 64, UDP, "p99", experiment.AtMost(0.7, 0.8)},
	}
	if diff := cmp.Diff(want, r.Targets); diff != "" {
		t.Error(diff)
	}
	for i, met := range []bool{false, true, true, false} {
		if r.Targets[i].Met != met {
			t.Errorf("%v met: %v", r.Targets[i], r.Targets[i].Met)
		}
	}
}

// sampleReport has results of two baselines in every test.
func sampleReport() *Report {
	r := &Report{Rounds: 1, Results: []Result{}, Ratios: []Ratio{}, Unavailable: []experiment.Unavailable{
		{Baseline: DPDK, Reason: "no testpmd", Install: "build it"},
	}}
	for _, test := range Tests() {
		for _, size := range []int{190, 1414} {
			var pair []Result
			for i, baseline := range []string{Libra, UDP} {
				s := Sample{Figures: Figures{PPS: 1e6 / float64(i+1), Cost: Cost{NsUser: 10, NsKernel: 300}}}
				if test == RequestResponse {
					ns := 10e3 * float64(i+1)
					s.P50ns, s.P99ns = &ns, &ns
				}
				pair = append(pair, newResult(test, size, baseline, []Sample{s}))
			}
			r.addResults(pair)
		}
	}
	r.judgeResults()
	return r
}

func TestReportIsOneJSONObject(t *testing.T) {
	encoded, err := json.Marshal(sampleReport())
	if err != nil {
		t.Fatal(err)
	}
	var decoded struct {
		Results []map[string]any `json:"results"`
	}
	if err := json.Unmarshal(encoded, &decoded); err != nil {
		t.Fatal(err)
	}
	if len(decoded.Results) != 4*len(Tests()) {
		t.Fatalf("%d results", len(decoded.Results))
	}
	for _, r := range decoded.Results {
		for _, key := range []string{"test", "frame_bytes", "peer", "frames_per_s", "user_ns_per_frame", "kernel_ns_per_frame", "samples"} {
			if _, ok := r[key]; !ok {
				t.Errorf("result %v has no %s", r, key)
			}
		}
		if timed := r["p50_ns"] != nil; timed != (r["test"] == string(RequestResponse)) {
			t.Errorf("round-trip time of %v is %v", r["test"], r["p50_ns"])
		}
	}
}

// One of something is no plural.
func TestTableOfOneRound(t *testing.T) {
	var out strings.Builder
	r := &Report{Machine: Machine{CPUs: 1}, Rounds: 1, Duration: time.Second, Results: []Result{{Test: Echo, Size: 190}}}
	if err := experiment.WriteTables(&out, r); err != nil || !strings.Contains(out.String(), ", 1 CPU, ") || !strings.Contains(out.String(), "medians of 1 round of 1s") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	if err := experiment.WriteTables(&b, sampleReport()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"request-response", "libra/baseline", "2.00", "met", "no testpmd", "to have it: build it"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, &b)
		}
	}
}

func TestCharts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "charts")
	paths, err := chart.Write(dir, sampleReport().Charts())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range paths {
		names = append(names, filepath.Base(p))
		svg, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"<svg", "</svg>", UDP, "1414"} {
			if !strings.Contains(string(svg), want) {
				t.Errorf("%s lacks %q", p, want)
			}
		}
	}
	want := []string{
		"cpu-transmit.svg", "rate-transmit.svg", "cpu-receive.svg", "rate-receive.svg",
		"cpu-echo.svg", "rate-echo.svg", "cpu-request-response.svg", "latency.svg",
		"cpu-push.svg", "rate-push.svg",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}
