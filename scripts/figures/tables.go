// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/aggregator"
	benchaggregator "github.com/libra-ina/libra/bench/aggregator"
	"github.com/libra-ina/libra/bench/engine"
	"github.com/libra-ina/libra/bench/push"
	"github.com/libra-ina/libra/bench/soak"
	"github.com/libra-ina/libra/bench/tenants"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// commands measure what the tables show. The documents name them beside the
// tables.
var commands = map[string]string{
	"engine": "libra bench engine --measure transmit,receive,echo,request-response,push --sizes 190,1414 " +
		"--baseline libxdp,asavie,udp,dpdk-af_xdp,libra-unprepared,bare,echo --rounds 11 --duration 300ms",
	"push":       "libra bench push --workers 4,8 --batches 4096,32 --rounds 5 --duration 300ms",
	"aggregator": "libra bench aggregator --measure cost --modes combine --hot 30000 --stripes 1,10 --rounds 9",
	"tenants":    "libra bench tenants --duration 8s --within 0.2",
	"soak":       "libra bench soak --duration 10m",
}

// sources returns the names of the measurements.
func sources() []string { return slices.Sorted(maps.Keys(commands)) }

// results are those that were measured; what is empty was not.
type results struct {
	engine     engine.Report
	push       push.Report
	aggregator benchaggregator.Report
	tenants    tenants.Report
	soak       soak.Report
}

// sizes are those of frames with one stripe and with ten, in bytes.
var sizes = []int{190, 1414}

var tables = map[string]*table{
	"bare": {header: []string{"", "190 bytes", "1414 bytes", "wanted"}, rows: []row{
		{"frame rate of pushes of prepared batches, of bare's", "engine",
			wanted("0.9, 0.85", rates(engine.Push, engine.Bare))},
		{"of pushes whose keys are looked up", "engine", wanted("", rates(engine.Push, engine.Unprepared))},
		{"of an echo of whole frames, without an aggregator", "engine", wanted("", rates(engine.Push, engine.EchoInPush))},
	}},
	"engine": {header: []string{"", "190 bytes", "1414 bytes", "wanted"}, rows: []row{
		{"transmit: libxdp in C", "engine", wanted("0.97", rates(engine.Transmit, engine.Libxdp))},
		{"receive: libxdp", "engine", wanted("0.97", rates(engine.Receive, engine.Libxdp))},
		{"echo: libxdp", "engine", wanted("0.97", rates(engine.Echo, engine.Libxdp))},
		{"transmit: asavie/xdp", "engine", wanted("1.15", rates(engine.Transmit, engine.Asavie))},
		{"echo: asavie/xdp", "engine", wanted("1.2", rates(engine.Echo, engine.Asavie))},
		{"transmit: DPDK net_af_xdp", "engine", wanted("1.0", rates(engine.Transmit, engine.DPDK))},
		{"receive: DPDK net_af_xdp", "engine", wanted("1.0", rates(engine.Receive, engine.DPDK))},
		{"echo: DPDK net_af_xdp", "engine", wanted("1.0", rates(engine.Echo, engine.DPDK))},
		{"transmit: UDP, sendmmsg", "engine", wanted("6 at 190", rates(engine.Transmit, engine.UDP))},
		{"echo: UDP, recvmmsg and sendmmsg", "engine", wanted("5 at 190", rates(engine.Echo, engine.UDP))},
		{"request–response, median: UDP socket", "engine", wanted("at most 0.7", latencies(func(q engine.Ratio) *float64 {
			return q.P50
		}))},
		{"request–response, p99: UDP socket", "engine", wanted("at most 0.7", latencies(func(q engine.Ratio) *float64 {
			return q.P99
		}))},
	}},
	"push": {header: []string{"workers, batch, baseline", "rate", "worker", "kernel", "aggregator", "server", "all"},
		rows: []row{
			{"4, 4,096, Libra", "push", costs(4, 4096, push.Libra)},
			{"4, 4,096, ZeroMQ, hash map", "push", costs(4, 4096, push.ZeroMQHash)},
			{"4, 4,096, ZeroMQ, our table", "push", costs(4, 4096, push.ZeroMQTable)},
			{"8, 4,096, Libra", "push", costs(8, 4096, push.Libra)},
			{"8, 4,096, ZeroMQ, hash map", "push", costs(8, 4096, push.ZeroMQHash)},
			{"8, 4,096, ZeroMQ, our table", "push", costs(8, 4096, push.ZeroMQTable)},
			{"4, 32, Libra", "push", costs(4, 32, push.Libra)},
			{"4, 32, ZeroMQ, hash map", "push", costs(4, 32, push.ZeroMQHash)},
			{"4, 32, ZeroMQ, our table", "push", costs(4, 32, push.ZeroMQTable)},
		}},
	"readme": {header: []string{"what", "figure", "command"}, rows: []row{
		short("engine against libxdp in C, 190 / 1414 bytes: transmit, receive, echo", "engine", "%s, %s, %s of its rate",
			rates(engine.Transmit, engine.Libxdp), rates(engine.Receive, engine.Libxdp), rates(engine.Echo, engine.Libxdp)),
		short("pushes of 4 workers against ZeroMQ with a hash map, with our table", "push", "%s times their rate",
			pushes(4096)),
		short("XDP program, frame of 10 stripes: `exact`, `fixed`, `lut`", "aggregator", "%s", pairCosts),
	}},
	"measured": {header: []string{"what", "figure", "command"}, rows: []row{
		named("XDP program, frame of 10 stripes: `exact`, `fixed`, `lut`", "aggregator", "%s", pairCosts),
		named("a flood of expensive frames, senders and jobs that come and go", "tenants", "%s", flood),
		named("10 minutes of echo in trouble", "soak", "%s", trouble),
	}},
}

// short is a row that names how it is measured again, and not the whole command.
func short(label, source, format string, figures ...func(results) []string) row {
	r := named(label, source, format, figures...)
	cells := r.cells
	r.cells = func(measured results) []string {
		c := cells(measured)
		if c != nil {
			c[len(c)-1] = "`make figures ONLY=" + source + "`"
		}
		return c
	}
	return r
}

// named is a row of the table that names each row's command.
func named(label, source, format string, figures ...func(results) []string) row {
	return row{label, source, func(r results) []string {
		var texts []any
		for _, figure := range figures {
			cells := figure(r)
			if cells == nil {
				return nil
			}
			texts = append(texts, strings.Join(cells, " / "))
		}
		return []string{fmt.Sprintf(format, texts...), "`" + commands[source] + "`"}
	}}
}

// wanted adds a cell to others.
func wanted(text string, cells func(results) []string) func(results) []string {
	return func(r results) []string {
		if c := cells(r); c != nil {
			return append(c, text)
		}
		return nil
	}
}

// ratios returns a figure of the engine's ratios at each of sizes.
func ratios(test engine.Test, baseline string, figure func(engine.Ratio) *float64) func(results) []string {
	return func(r results) (cells []string) {
		for _, size := range sizes {
			q := experiment.Find(r.engine.Ratios, func(q engine.Ratio) bool {
				return q.Test == test && q.Size == size && q.Baseline == baseline
			})
			if q == nil || figure(*q) == nil {
				return nil
			}
			cells = append(cells, fmt.Sprintf("%.2f", *figure(*q)))
		}
		return cells
	}
}

// rates returns the ratios of rates within rounds.
func rates(test engine.Test, baseline string) func(results) []string {
	return ratios(test, baseline, func(q engine.Ratio) *float64 { return &q.Paired })
}

func latencies(figure func(engine.Ratio) *float64) func(results) []string {
	return ratios(engine.RequestResponse, engine.UDP, figure)
}

func findPush(r results, workers, batch int, baseline string) *push.Result {
	return experiment.Find(r.push.Results, func(res push.Result) bool {
		return res.Workers == workers && res.Batch == batch && res.Baseline == baseline
	})
}

// costs returns a rate in million pairs per second, and CPU nanoseconds a pair.
func costs(workers, batch int, baseline string) func(results) []string {
	return func(r results) []string {
		res := findPush(r, workers, batch, baseline)
		if res == nil {
			return nil
		}
		cells := []string{fmt.Sprintf("%.1f", res.PairsPerSecond/1e6)}
		for _, ns := range []float64{res.NsWorker, res.NsKernel, res.NsAggregator, res.NsServer} {
			cells = append(cells, report.Cell("%.1f", ns)) // a baseline has no aggregator
		}
		return append(cells, fmt.Sprintf("%.0f", res.NsTotal))
	}
}

// pushes returns the rate of 4 workers and its ratios to the baselines'.
func pushes(batch int) func(results) []string {
	return func(r results) []string {
		ours, hash, table := findPush(r, 4, batch, push.Libra), findPush(r, 4, batch, push.ZeroMQHash),
			findPush(r, 4, batch, push.ZeroMQTable)
		if ours == nil || hash == nil || table == nil {
			return nil
		}
		return []string{fmt.Sprintf("%.1f M pairs/s: %.1f, %.1f", ours.PairsPerSecond/1e6, hash.Ratio, table.Ratio)}
	}
}

// pairCosts returns the cost of pairs in the XDP program.
func pairCosts(r results) []string {
	find := func(a aggregator.Arithmetic, stripes int) *benchaggregator.Result {
		return experiment.Find(r.aggregator.Results, func(res benchaggregator.Result) bool {
			return res.Arithmetic == a.String() && res.Stripes == stripes
		})
	}
	exact, fixed, lut, one := find(aggregator.Exact, 10), find(aggregator.Fixed, 10), find(aggregator.LUT, 10),
		find(aggregator.Exact, 1)
	if exact == nil || fixed == nil || lut == nil || one == nil {
		return nil
	}
	return []string{fmt.Sprintf("%.1f, %.1f, %.0f ns a pair, one stripe of `exact` %.0f ns", exact.NsPerPair,
		fixed.NsPerPair, lut.NsPerPair, one.NsPerFrame)}
}

// flood returns what a flood does to the harvests of two other jobs.
func flood(r results) []string {
	if len(r.tenants.Phases) != 2 {
		return nil
	}
	calm, busy := r.tenants.Phases[0], r.tenants.Phases[1]
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/1e6) }
	most := func(p tenants.Phase, figure func(tenants.Job) time.Duration) (d time.Duration) {
		for _, j := range p.Tenants {
			d = max(d, figure(j))
		}
		return d
	}
	mean, p95 := func(j tenants.Job) time.Duration { return j.Mean }, func(j tenants.Job) time.Duration { return j.P95 }
	return []string{fmt.Sprintf("%s frames, %.0f senders and %.0f jobs a second: two other jobs' sums exact, their mean harvest interval at most %s ms of %s, p95 at most %s; undisturbed %s and %s",
		humanize.Comma(int64(float64(busy.FloodFrames)/busy.FloodSeconds)), float64(busy.Joins)/busy.ChurnSeconds,
		float64(busy.Jobs)/busy.ChurnSeconds,
		ms(most(busy, mean)), ms(r.tenants.Harvest), ms(most(busy, p95)), ms(most(calm, mean)), ms(most(calm, p95)))}
}

// trouble returns what was accounted for in a soak whose every check passed.
func trouble(r results) []string {
	if r.soak.Accounts == 0 || len(r.soak.Failures) > 0 {
		return nil
	}
	var sent uint64
	for _, l := range r.soak.Links {
		sent += l.Sent
	}
	return []string{fmt.Sprintf("%s restarts of queues, interfaces, links and processes: %.0f M packets, %d frames leaked in %s accounts, no lost wake-up, every packet accounted for",
		humanize.Comma(int64(len(r.soak.Events))), float64(sent)/1e6, r.soak.Leaked, humanize.Comma(int64(r.soak.Accounts)))}
}
