package engine

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// samplesOf makes samples with the given rates.
func samplesOf(rates ...float64) []Sample {
	var s []Sample
	for _, r := range rates {
		s = append(s, Sample{PPS: r, NsUser: r / 10})
	}
	return s
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{4, 1}, 2.5},
		{[]float64{9, 1, 5}, 5},
		{[]float64{7, 1, 100, 3}, 5},
	} {
		values := slices.Clone(c.values)
		if got := median(values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(values, c.values) {
			t.Errorf("median changed %v to %v", c.values, values)
		}
	}
}

func TestPercentilesAreThoseOfTheSortedTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nanos := rapid.SliceOfN(rapid.Uint32Range(1, math.MaxUint32), 1, 300).Draw(t, "nanos")
		p50, p99 := latencies(nanos)
		sorted := slices.Sorted(slices.Values(nanos))
		for _, q := range []struct {
			quantile float64
			got      float64
		}{{0.5, *p50}, {0.99, *p99}} {
			want := float64(sorted[int(math.Ceil(q.quantile*float64(len(sorted))))-1]) / 1e3
			if math.Abs(q.got-want) > want*1.5e-3+1e-3 {
				t.Errorf("quantile %v is %v µs, want %v", q.quantile, q.got, want)
			}
		}
	})
	if p50, p99 := latencies(nil); p50 != nil || p99 != nil {
		t.Error("there are percentiles of nothing")
	}
}

func TestSummary(t *testing.T) {
	r := Result{Samples: samplesOf(300, 100, 200)}
	for i := range r.Samples {
		v := float64(i)
		r.Samples[i].P50us, r.Samples[i].P99us = &v, &v
		r.Samples[i].drops = map[string]uint64{"ring full": 2, "never": 0}
	}
	r.summarise()
	if r.PPS != 200 || r.PPSMin != 100 || r.PPSMax != 300 || r.NsUser != 20 || *r.P50us != 1 {
		t.Errorf("summary %+v", r)
	}
	if diff := cmp.Diff(map[string]uint64{"ring full": 6}, r.Drops); diff != "" {
		t.Error(diff)
	}
}

// A machine that slows down between rounds changes the rates, not the ratios.
func TestRatiosArePairedByRound(t *testing.T) {
	ours := Result{Test: Echo, Size: 190, Peer: PeerLibra, Samples: samplesOf(1000, 10, 100)}
	peer := Result{Test: Echo, Size: 190, Peer: PeerUDP, Samples: samplesOf(500, 5, 50)}
	ours.summarise()
	peer.summarise()
	want := Ratio{Test: Echo, Size: 190, Peer: PeerUDP, OfMedians: 2, Paired: 2, PairedMin: 2, PairedMax: 2}
	if diff := cmp.Diff(want, compare(&ours, &peer)); diff != "" {
		t.Error(diff)
	}
	nothing := Result{Samples: samplesOf(0, 0, 0)}
	nothing.summarise()
	if got := compare(&ours, &nothing).OfMedians; got != 0 {
		t.Errorf("ratio to nothing is %v; JSON could not hold it", got)
	}
}

func TestDifference(t *testing.T) {
	before := map[string]uint64{"a": 1, "b": 5}
	after := map[string]uint64{"a": 4, "b": 5, "new": 2}
	if diff := cmp.Diff(map[string]uint64{"a": 3, "b": 0, "new": 2}, difference(before, after)); diff != "" {
		t.Error(diff)
	}
	if after["a"] != 4 {
		t.Error("difference changed its argument")
	}
}

func TestTargets(t *testing.T) {
	low, high := 0.6, 0.8
	got := judge([]Ratio{
		{Test: Echo, Size: 190, Peer: PeerUDP, OfMedians: 5.5},
		{Test: Echo, Size: 1414, Peer: PeerUDP, OfMedians: 1}, // no target at this size
		{Test: Transmit, Size: 1414, Peer: PeerLibxdp, OfMedians: 0.9},
		{Test: RequestResponse, Size: 64, Peer: PeerUDP, P50: &low, P99: &high},
	})
	want := []Target{
		{Transmit, 1414, PeerLibxdp, "pps", 0.97, 0.9, false},
		{Echo, 190, PeerUDP, "pps", 5, 5.5, true},
		{RequestResponse, 64, PeerUDP, "p50", 0.7, 0.6, true},
		{RequestResponse, 64, PeerUDP, "p99", 0.7, 0.8, false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConfig(t *testing.T) {
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(cfg.Tests, Tests()) || !slices.Equal(cfg.Sizes, Sizes()) || !slices.Equal(cfg.Peers, Peers()) || cfg.Rounds != 5 {
		t.Errorf("defaults %+v", cfg)
	}
	for name, c := range map[string]Config{
		"test":     {Tests: []Test{"receiv"}},
		"size":     {Sizes: []int{63}},
		"big size": {Sizes: []int{9015}},
		"peer":     {Peers: []string{"netmap"}},
		"rounds":   {Rounds: -1},
		"duration": {Duration: 1},
		"warm-up":  {WarmUp: -1},
		"CPU":      {CPUs: [2]int{0, 1 << 20}},
	} {
		if _, err := c.withDefaults(); !errors.Is(err, ErrConfig) {
			t.Errorf("wrong %s: error %v", name, err)
		}
	}
}

// sampleReport has results of two peers in every test.
func sampleReport() *Report {
	r := &Report{Rounds: 1, Results: []Result{}, Ratios: []Ratio{}, Unavailable: []Unavailable{
		{Peer: PeerDPDKAFXDP, Reason: "no testpmd", Install: "build it"},
	}}
	for _, test := range Tests() {
		for _, size := range []int{190, 1414} {
			var pair []Result
			for i, peer := range []string{PeerLibra, PeerUDP} {
				s := Sample{PPS: 1e6 / float64(i+1), NsUser: 10, NsKernel: 300}
				if test == RequestResponse {
					us := 10 * float64(i+1)
					s.P50us, s.P99us = &us, &us
				}
				res := Result{Test: test, Size: size, Peer: peer, Samples: []Sample{s}}
				res.summarise()
				pair = append(pair, res)
			}
			r.Results = append(r.Results, pair...)
			r.Ratios = append(r.Ratios, compare(&pair[0], &pair[1]))
		}
	}
	r.finish()
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
		for _, key := range []string{"test", "size", "peer", "pps", "ns_user", "ns_kernel", "p50_us", "p99_us"} {
			if _, ok := r[key]; !ok {
				t.Errorf("result %v has no %s", r, key)
			}
		}
		if timed := r["p50_us"] != nil; timed != (r["test"] == string(RequestResponse)) {
			t.Errorf("round-trip time of %v is %v", r["test"], r["p50_us"])
		}
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	if err := sampleReport().WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"request-response", "libra/peer", "2.00", "met", "no testpmd", "to have it: build it"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, &b)
		}
	}
}

func TestPlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plots")
	paths, err := sampleReport().WritePlots(dir)
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
		for _, want := range []string{"<svg", "</svg>", PeerUDP, "1414"} {
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
