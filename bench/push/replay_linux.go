// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// replay replays traces: first with the numbers of workers that are asked for, and then with few,
// of which it measures what each role costs.
func replay(ctx context.Context, cfg Config) (_ *Report, err error) {
	r := &run{cfg: cfg, report: &Report{Rounds: cfg.Rounds, Duration: cfg.Duration, Harvest: cfg.Harvest}}
	defer func() { err = errors.Join(err, experiment.Close(r.keyValue)) }()
	if err := r.findBaselines(ctx); err != nil {
		return nil, err
	}
	r.progress = experiment.ProgressCounter{Progress: cfg.Progress, Total: r.countReplays()}
	f := newFigure(&cfg)
	workers := cfg.Workers
	for _, scale := range []bool{false, true} {
		if r.cfg.Scale, r.cfg.Workers = scale, workers; scale {
			r.cfg.Workers = []int{costWorkers}
		}
		if err = r.replayAll(ctx, f); err != nil {
			break
		}
	}
	if err != nil && len(f.Points) == 0 {
		return nil, err
	}
	f.finish(&cfg)
	r.report.Figure, r.report.Results, r.report.Targets = f, []Result{}, []experiment.Target{}
	return r.report, err
}

// countReplays returns how many measurements there are. Those of dense vectors are the same for all
// traces.
func (r *run) countReplays() int {
	sparse, dense := len(r.baselines), 0
	if slices.Contains(r.baselines, SwitchML) {
		sparse, dense = sparse-1, len(denseSizes())*len(r.cfg.Workers)+1
	}
	return (len(r.cfg.Traces)*sparse*(len(r.cfg.Workers)+1) + dense) * r.cfg.Rounds
}

// replayAll measures all traces on one bed.
func (r *run) replayAll(ctx context.Context, f *Figure) (err error) {
	if r.bed, err = newBed(ctx, slices.Max(r.cfg.Workers), 1, r.cfg.Scale); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, experiment.Close(r.bed)) }()
	all := r.baselines
	defer func() { r.baselines = all }()
	r.baselines = slices.DeleteFunc(slices.Clone(all), func(b string) bool { return b == SwitchML })
	for i, t := range r.cfg.Traces {
		if len(r.baselines) == 0 {
			break
		}
		ranked := t.Ranked()
		h, size := replayLayout(t, ranked)
		fill := func(w *workload) { w.fillFrom(t, ranked) }
		if err := r.measureLoad(ctx, h, size, fill, Result{}, "trace "+t.Name); err != nil {
			return err
		}
		runtime.GC() // a trace may be large
		f.addResults(&f.Traces[i], r.takeResults())
	}
	if len(r.baselines) == len(all) {
		return nil
	}
	r.baselines = []string{SwitchML}
	sizes := denseSizes()
	if r.cfg.Scale {
		sizes = sizes[:1]
	}
	h, size := layOut(1, 1, 1, []share{{batches: 1, rows: 1}})
	for _, r.slots = range sizes {
		what := fmt.Sprintf("all gradients, %d slots", r.slots)
		if err := r.measureLoad(ctx, h, size, func(w *workload) { w.fillNothing() }, Result{}, what); err != nil {
			return err
		}
		f.addDense(r.slots, r.takeResults())
	}
	return nil
}

// takeResults takes the results of a load from the report: the figure has them.
func (r *run) takeResults() (results []Result) {
	results, r.report.Results = r.report.Results, nil
	return results
}
