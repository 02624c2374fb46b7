// SPDX-License-Identifier: Apache-2.0

package push

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/trace"
)

// exampleTraces returns a trace of two ranks with rows of 3 floats, and a made-up one.
func exampleTraces() []*trace.Trace {
	rows := &trace.Trace{Name: "rows", Dim: 3, Parameters: 3 * 5, Least: true, Workers: []trace.Worker{
		{Starts: []int{0, 1, 4}, Keys: []uint64{9, 1, 2, 9}, Grads: []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1e6}, Steps: 2},
		{Starts: []int{0, 2}, Keys: []uint64{3, 1 << 63}, Grads: []float32{-1, 0, 1, 0.1, 0.2, 1e-6}, Steps: 1},
	}}
	skew := trace.Skew{Name: "skew", Parameters: 9000, Hot: 30, Share: 0.5}
	return []*trace.Trace{rows, trace.Draw(skew, trace.Shape{Workers: 1, Pushes: 8, Rows: 64}, 1)}
}

// replayOf returns a workload that replays a trace.
func replayOf(t *trace.Trace) *workload {
	ranked := t.Ranked()
	h, size := replayLayout(t, ranked)
	w := &workload{header: h, mem: make([]byte, size)}
	w.fillFrom(t, ranked)
	return w
}

// Workers push what the trace has, in turn, with gradients in the range of the job.
func TestReplayedPushes(t *testing.T) {
	w := replayOf(exampleTraces()[0])
	if h := headerOf(w.mem); h.keys != 5 || h.dim != 3 || h.hot != 5 || !slices.Equal(h.shares, w.shares) {
		t.Errorf("header %+v", h)
	}
	if got := w.rankedKeys(); !slices.Equal(got, []uint64{9, 1, 2, 3, 1 << 63}) {
		t.Errorf("keys %v by rank", got)
	}
	const scale = 0x1p-27 // of 1e6, which is below 2^20
	b := w.shareOf(2)     // as worker 0
	if !slices.Equal(b.keysOf(3), []uint64{1, 2, 9}) ||
		!slices.Equal(b.gradsOf(3), []float32{4 * scale, 5 * scale, 6 * scale, 7 * scale, 8 * scale, 9 * scale, 10 * scale, 11 * scale, 1e6 * scale}) {
		t.Errorf("push 3 has keys %v and gradients %v", b.keysOf(3), b.gradsOf(3))
	}
	for _, test := range [][3]uint64{{0, 0, 0}, {0, 1, 1}, {1, 2, 3}, {0, 2, 4}, {1, 5, 8}} {
		if got := b.rowsOf(test[0], test[1]); got != test[2] {
			t.Errorf("%d rows in pushes %d to %d, want %d", got, test[0], test[1], test[2])
		}
	}
}

// addedFloats returns what a server holds that adds floats.
func addedFloats(w *workload, pushes []uint64) (held []row) {
	sums := map[uint64][]float32{}
	for worker, n := range pushes {
		b := w.shareOf(worker)
		for i := range int(n) {
			grads := b.gradsOf(i)
			for k, key := range b.keysOf(i) {
				if sums[key] == nil {
					sums[key] = make([]float32, w.dim)
				}
				for d := range w.dim {
					sums[key][d] += grads[k*w.dim+d]
				}
			}
		}
	}
	for key, floats := range sums {
		r := row{key: key}
		for _, sum := range floats {
			r.units = append(r.units, int64(math.Ldexp(float64(sum), 46)))
		}
		held = append(held, r)
	}
	return held
}

// Sums of a replay are held to what was pushed, exactly, or within what a server that adds floats
// rounds.
func TestReplayedSums(t *testing.T) {
	w := replayOf(exampleTraces()[0])
	pushes := []uint64{5, 2, 3}
	var held []row
	for key, sums := range sumsOf(w, pushes) {
		held = append(held, row{key, sums})
	}
	for _, floats := range []bool{false, true} {
		if err := w.checkSums(pushes, held, floats); err != nil {
			t.Error(err)
		}
		if err := w.checkSums([]uint64{5, 2, 4}, held, floats); !errors.Is(err, ErrSums) {
			t.Errorf("a lost push: %v, want ErrSums", err)
		}
	}
	if err := w.checkSums(pushes, addedFloats(w, pushes), true); err != nil {
		t.Errorf("sums of floats: %v", err)
	}
	held[0].units[1]++
	if err := w.checkSums(pushes, held, false); !errors.Is(err, ErrSums) {
		t.Errorf("a wrong sum: %v, want ErrSums", err)
	}
	if err := w.checkSums(pushes, append(held, row{8, []int64{0, 0, 0}}), false); !errors.Is(err, ErrSums) {
		t.Errorf("an unknown key: %v, want ErrSums", err)
	}
}

// A figure divides rates by Libra's, makes SwitchML's of that of all gradients, and computes with
// what each role costs.
func TestFigure(t *testing.T) {
	cfg := ReplayDefaults(exampleTraces()[:1])
	f := newFigure(&cfg)
	result := func(baseline string, workers int, rate float64, roles *Roles) Result {
		return Result{Workers: workers, Baseline: baseline, Figures: Figures{PairsPerSecond: rate, Roles: roles}}
	}
	f.addResults(&f.Traces[0], []Result{result(Unprepared, 4, 1000, nil), result(ZeroMQHash, 4, 500, nil)})
	f.addResults(&f.Traces[0], []Result{
		result(Unprepared, 2, 1, &Roles{Worker: RoleCost{NsUser: 1e6}, Server: RoleCost{NsUser: 1e5}}),
		result(ZeroMQHash, 2, 1, &Roles{Worker: RoleCost{NsUser: 1e5}, Server: RoleCost{NsUser: 4e5}}),
	})
	f.addDense(denseSlots, []Result{result(SwitchML, 4, 6000, nil)})
	f.addDense(denseSlots/4, []Result{result(SwitchML, 4, 1500, nil)})
	f.addDense(denseSlots, []Result{result(SwitchML, 2, 1, &Roles{Worker: RoleCost{NsKernel: 1e6}, Server: RoleCost{NsUser: 1e9}})})
	f.finish(&cfg)
	// An iteration has 2 rows of 15 parameters.
	for _, want := range []FigurePoint{
		{Peer: Unprepared, Workers: 4, RowsPerSecond: 1000, Normalised: 1},
		{Peer: ZeroMQHash, Workers: 4, RowsPerSecond: 500, Normalised: 0.5},
		{Peer: SwitchML, Workers: 4, RowsPerSecond: 800, Normalised: 0.8},
		{Peer: Unprepared, Workers: 8, Computed: true, RowsPerSecond: 8000, Normalised: 1, Bottleneck: "worker"},
		{Peer: Unprepared, Workers: 32, Computed: true, RowsPerSecond: 10000, Normalised: 1, Bottleneck: "server"},
		{Peer: ZeroMQHash, Workers: 32, Computed: true, RowsPerSecond: 2500, Normalised: 0.25, Bottleneck: "server"},
	} {
		got := f.find("rows", want.Peer, want.Workers, want.Computed)
		if got == nil || got.RowsPerSecond != want.RowsPerSecond || got.Normalised != want.Normalised || got.Bottleneck != want.Bottleneck {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if got := f.find("rows", SwitchML, 32, true); got == nil || got.Bottleneck != "worker" || got.RowsPerSecond < 4266 || got.RowsPerSecond > 4267 {
		t.Errorf("%+v, want 32,000 values, of which 2 of 15 are rows", got)
	}
	var out strings.Builder
	r := &Report{Figure: f}
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"≥ 15", "computed", SwitchML, "0.25", "1.5 to 4 times", "16,384            0.0015    0    0               0.25"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
	if charts := r.Charts(); len(charts) != 4 || charts[0].Name != "push-replay-4" || charts[3].Name != "push-replay-32-computed" {
		t.Errorf("charts %+v", charts)
	}
}
