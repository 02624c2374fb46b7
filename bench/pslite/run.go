// SPDX-License-Identifier: Apache-2.0

package pslite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer"
)

// HotKeys is the number of keys of each hot set.
const HotKeys = 30_000

// Run measures. It needs root with AF_XDP, and what 'make pslite' builds; each sum of a store that
// is wrong ends it. When ctx is done, Run returns what it has, if anything, and the cause.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := cfg.checkFields(); err != nil {
		return nil, err
	}
	for _, name := range []string{"libra_van.so", "rates", "kv_app_benchmark_test"} {
		if _, err := os.Stat(filepath.Join(cfg.Built, name)); err != nil {
			return nil, fmt.Errorf("pslite: %w: build it with 'make pslite PSLITE=DIR', and name its folder out/pslite with --pslite",
				err)
		}
	}
	dir, err := os.MkdirTemp("", "libra-pslite-*")
	if err != nil {
		return nil, fmt.Errorf("pslite: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m := &measurer{Config: cfg, hot: filepath.Join(dir, "hot.libra"), untouched: filepath.Join(dir, "untouched.libra")}
	if err := m.writeHotSets(); err != nil {
		return nil, fmt.Errorf("pslite: %w", err)
	}
	r := &Report{
		CPUs: runtime.NumCPU(), Workers: cfg.Workers, Pushes: cfg.Pushes, Apart: cfg.Apart, Backend: cfg.Backend,
		Rounds: cfg.Rounds,
	}
	var subjects []*experiment.Subject[Sample]
	for _, measure := range Measures() {
		if !cfg.has(measure) {
			continue
		}
		for _, van := range []string{Libra, ZMQ} {
			r.Results = append(r.Results, Result{Measure: measure, Van: van})
			subjects = append(subjects, &experiment.Subject[Sample]{
				What:    measure + " over " + van,
				Measure: func(ctx context.Context) (Sample, error) { return m.measure(ctx, measure, van) },
			})
		}
	}
	steps := experiment.ProgressCounter{Progress: cfg.Progress, Total: len(subjects) * cfg.Rounds}
	err = experiment.TakeTurns(ctx, cfg.Rounds, &steps, subjects)
	for i, s := range subjects {
		r.Results[i].Samples = s.Samples
	}
	if err != nil {
		err = fmt.Errorf("pslite: %w", err)
		if len(r.Results) == 0 || len(r.Results[0].Samples) == 0 {
			return nil, err
		}
	}
	r.finish(cfg.asWanted())
	return r, err
}

// measurer measures.
type measurer struct {
	Config
	hot, untouched string // hot sets: of rates.cc's hottest keys, and of keys that no push has
}

// writeHotSets writes the hot sets. The keys are those of rates.cc, and of test_kv_app_benchmark.
func (m *measurer) writeHotSets() error {
	const pushed = 10_000_000
	var hot, untouched []uint64
	for i := range uint64(HotKeys) {
		hot = append(hot, i*0x9e3779b97f4a7c15)
		untouched = append(untouched, math.MaxUint64/pushed*(pushed/HotKeys*i)+1000)
	}
	for path, keys := range map[string][]uint64{m.hot: hot, m.untouched: untouched} {
		set, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
		if err = errors.Join(err, packer.SaveHotSet(path, set)); err != nil {
			return err
		}
	}
	return nil
}

// measure runs a program.
func (m *measurer) measure(ctx context.Context, measure, van string) (s Sample, err error) {
	run := demo.PSLite{Hosts: 1, Servers: 1, Workers: 1, Customers: 1, Backend: m.Backend, HotSet: m.hot}
	rates := filepath.Join(m.Built, "rates")
	switch measure {
	case Cold:
		run.HotSet = m.untouched
		run.Command = []string{filepath.Join(m.Built, "kv_app_benchmark_test")}
	case Small:
		run.Command = []string{rates, "small", strconv.Itoa(m.Small)}
	default:
		run.Workers = m.Workers
		if measure == Pulls {
			run.Workers++
		}
		run.Command = []string{rates, "batches", strconv.Itoa(m.Pushes), strconv.Itoa(m.Workers)}
	}
	if m.Apart {
		run.Hosts = 2 + run.Workers
		run.Namespaces = m.Backend == cluster.BackendUDP
	}
	if van == ZMQ {
		run.HotSet = ""
		run.Command = append([]string{"env", "DMLC_PS_VAN_TYPE=zmq"}, run.Command...)
	} else {
		run.Van = filepath.Join(m.Built, "libra_van.so")
	}
	var out, log bytes.Buffer
	run.Stdout, run.Stderr = &out, &log
	if _, err := demo.RunPSLite(ctx, run); err != nil {
		return s, fmt.Errorf("%w\n%s%s", err, &out, &log)
	}
	return s, s.read(measure, append(out.Bytes(), log.Bytes()...))
}

// A figure is found in what a program prints, and multiplied by scale.
type figure struct {
	pattern *regexp.Regexp
	scale   float64
	into    func(*Sample) *float64
}

func push(s *Sample) *float64 { return &s.Push }
func pull(s *Sample) *float64 { return &s.Pull }
func rate(s *Sample) *float64 { return &s.Rate }

var batchRate = figure{regexp.MustCompile(`pairs_per_s (\S+)`), 1, rate}

var figures = map[string][]figure{
	Cold: {
		{regexp.MustCompile(`Push average time cost: ([0-9.]+)ms`), 1e-3, push},
		{regexp.MustCompile(`Pull average time cost: ([0-9.]+)ms`), 1e-3, pull},
	},
	Small:   {{regexp.MustCompile(`median_us (\S+)`), 1e-6, push}},
	Batches: {batchRate},
	Pulls:   {batchRate, {regexp.MustCompile(`pull_median_ms (\S+)`), 1e-3, pull}},
}

// read reads the figures that a program has printed.
func (s *Sample) read(measure string, text []byte) error {
	for _, f := range figures[measure] {
		found := f.pattern.FindSubmatch(text)
		if found == nil {
			return fmt.Errorf("%s: no %q in\n%s", measure, f.pattern, text)
		}
		x, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			return fmt.Errorf("%s: %w", measure, err)
		}
		*f.into(s) = x * f.scale
	}
	return nil
}
