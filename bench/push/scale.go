// SPDX-License-Identifier: Apache-2.0

package push

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// The numbers of workers and of servers that the study of scale goes through.
var (
	scaleWorkers = []int{1, 2, 4, 8, 16, 32, 64}
	scaleServers = []int{1, 2, 4, 8}
)

// Scale is the study of scale: the rates that follow from what a pair costs each role where every
// worker and server is a machine of its own.
type Scale struct {
	// Line is the rate of a machine's link in each direction.
	Line        float64  `json:"line_gbit_per_s"`
	Assumptions []string `json:"assumptions"`
	// Points has one entry for each batch size, baseline, number of workers and number of servers.
	Points []ScalePoint `json:"points"`
	// Checks holds the model against measurements in which each role is held to a share of a CPU.
	Checks []ScaleCheck `json:"checks"`
}

// ScalePoint is a rate that the model predicts.
type ScalePoint struct {
	Batch          int     `json:"batch"`
	Baseline       string  `json:"peer"`
	Workers        int     `json:"workers"`
	Servers        int     `json:"servers"`
	PairsPerSecond float64 `json:"pairs_per_s"` // pairs per second of all workers together
	// Bottleneck is what is busy all the time: worker, server, worker link or server link.
	Bottleneck string `json:"bottleneck"`
	// SwitchCPUs is how many CPUs a switch needs that runs the XDP program; 0 of ZeroMQ.
	SwitchCPUs float64 `json:"switch_cpus"`
	// Ratio is Libra's rate divided by this one.
	Ratio float64 `json:"ratio"`
}

// ScaleCheck is a measurement of the model.
type ScaleCheck struct {
	Batch    int    `json:"batch"`
	Baseline string `json:"peer"`
	Workers  int    `json:"workers"` // number of workers, beside one server
	Held
	Predicted  float64 `json:"predicted_pairs_per_s"`
	Bottleneck string  `json:"bottleneck"` // what the model names as busy all the time
	// Error is the measured rate divided by the predicted one, less 1.
	Error float64 `json:"error"`
}

// Roles is what each role costs, whatever it runs beside.
type Roles struct {
	Worker RoleCost `json:"worker"`
	Server RoleCost `json:"server"`
	// Switch is that of Libra: the kernel's time at its ports, with the XDP program, and the
	// control service.
	Switch RoleCost `json:"switch"`
	// WorkerBytes and ServerBytes are what a pair of all pairs takes on the links of the workers
	// together and of the server, in the busier direction, with all that Ethernet adds.
	WorkerBytes float64 `json:"worker_link_bytes_per_pair"`
	ServerBytes float64 `json:"server_link_bytes_per_pair"`
}

// RoleCost is the CPU time that a role causes.
type RoleCost struct {
	// NsUser and NsKernel are for each pair, without the harvests.
	NsUser   float64 `json:"user_ns_per_pair"`
	NsKernel float64 `json:"kernel_ns_per_pair"`
	// Harvests is the CPUs that harvests take, whatever the rate.
	Harvests float64 `json:"harvest_cpus"`
}

func (c RoleCost) perPair() float64 { return c.NsUser + c.NsKernel }

// Held is a measurement in which each worker and the server have a share of a CPU.
type Held struct {
	Share          float64 `json:"share_of_cpu"`
	PairsPerSecond float64 `json:"pairs_per_s"`
	WorkerCPUs     float64 `json:"worker_cpus"` // CPUs that each worker used, on average
	ServerCPUs     float64 `json:"server_cpus"`
}

// limit returns the rate at which the first role or link is busy all the time, in pairs a second of
// all workers, and its name. A worker and a server have a number of CPUs each, which is below 1 for
// a share of one; a link has a number of bytes a second in each direction, 0 for no limit.
func (r *Roles) limit(workers, servers int, cpus, line float64) (rate float64, bottleneck string) {
	w, s := float64(workers), float64(servers)
	limits := []struct {
		what            string
		capacity, costs float64
	}{
		{"worker", w * cpus * 1e9, r.Worker.perPair()},
		{"server", max(0, s*cpus-r.Server.Harvests) * 1e9, r.Server.perPair()},
		{"worker link", w * line, r.WorkerBytes},
		{"server link", s * line, r.ServerBytes},
	}
	if line == 0 {
		limits = limits[:2]
	}
	for _, l := range limits {
		if at := experiment.Quotient(l.capacity, l.costs); l.costs > 0 && (bottleneck == "" || at < rate) {
			rate, bottleneck = at, l.what
		}
	}
	return rate, bottleneck
}

// withHarvests parts what a role took into time for each pair and time for harvests, which costs
// the same whatever the rate, from measurements without and with moreHarvests times as many; all in
// CPU ns a second and pairs a second.
func withHarvests(cost, rate, more, moreRate float64) (perPair, harvests float64) {
	if rate == 0 || moreRate == 0 {
		return 0, 0
	}
	// cost = perPair*rate + harvests, more = perPair*moreRate + moreHarvests*harvests
	harvests = (more - cost*moreRate/rate) / (moreHarvests - moreRate/rate)
	harvests = min(max(0, harvests), cost) // what noise makes of little
	return (cost - harvests) / rate, harvests
}

// heldShare returns the share of a CPU that each worker and the server get when they are held to
// it: a fifth, or less where that would be more than half of all CPUs. The rest is for the switch,
// and for what else runs.
func heldShare(workers, cpus int) float64 { return min(0.2, 0.5*float64(cpus)/float64(workers+1)) }

// addScale derives the study of scale from the results.
func (r *Report) addScale(cfg *Config) {
	r.Scale = &Scale{Line: cfg.Line, Assumptions: assumptions(cfg)}
	for _, res := range r.Results {
		if res.Roles == nil {
			continue
		}
		ours := r.findResult(res.Workers, res.Batch, Libra)
		for _, workers := range scaleWorkers {
			for _, servers := range scaleServers {
				p := ScalePoint{Batch: res.Batch, Baseline: res.name(), Workers: workers, Servers: servers}
				p.PairsPerSecond, p.Bottleneck = res.Roles.limit(workers, servers, 1, cfg.Line*1e9/8)
				if sw := res.Roles.Switch; res.Baseline == Libra {
					p.SwitchCPUs = p.PairsPerSecond*sw.perPair()/1e9 + sw.Harvests
				}
				if ours != nil && ours.Roles != nil {
					rate, _ := ours.Roles.limit(workers, servers, 1, cfg.Line*1e9/8)
					p.Ratio = experiment.Quotient(rate, p.PairsPerSecond)
				}
				r.Scale.Points = append(r.Scale.Points, p)
			}
		}
		if held := experiment.Pick(res.Samples, func(s Sample) *Held { return s.Held }); !slices.Contains(held, nil) {
			c := ScaleCheck{Batch: res.Batch, Baseline: res.name(), Workers: res.Workers, Held: *experiment.MedianOf(held)}
			c.Predicted, c.Bottleneck = res.Roles.limit(res.Workers, 1, c.Share, 0)
			c.Error = experiment.Quotient(c.PairsPerSecond, c.Predicted) - 1
			r.Scale.Checks = append(r.Scale.Checks, c)
		}
	}
}

func assumptions(cfg *Config) []string {
	return []string{
		"Each worker and each server is a machine of its own, of which one CPU works for it. A rate is the one at which the first role, or link, is busy all the time: nothing waits for a round trip.",
		fmt.Sprintf("What a pair costs does not depend on the number of workers or servers. It was measured with %s and one server, which shared %s of this machine.",
			english.Plural(cfg.Workers[0], "worker", ""), english.Plural(runtime.NumCPU(), "CPU", "")),
		"Libra: a role's time is the user and kernel time of its process and the time of the kernel's thread that receives at its interface. A network card costs it what AF_XDP in copy mode costs on a veth pair here.",
		"ZeroMQ, in its favour: the loopback device stands for the network, in segments of 64 KiB, and no network card is added. Its kernel time is that of the process in whose context it was spent: what TCP does for the server when a push arrives is the worker's.",
		"The time of ksoftirqd is no role's: it cannot be told from that of other users of the machine.",
		fmt.Sprintf("The switch works at the rate of its links, %g Gbit/s in each direction of each machine's, with 24 bytes besides each frame. One that runs the XDP program needs the CPUs that the table gives; that CPUs which add to the same sum slow each other down is not in them.", cfg.Line),
		"Keys and sums are split evenly among the servers, and a push to several costs as much as one to one.",
		fmt.Sprintf("Harvests are every %v and take the same time whatever the rate; a measurement with %d times as many shows how much.", cfg.Harvest, moreHarvests),
		"Held: the same processes with a share of a CPU each, by control groups. The thread that receives at a role's interface is in the role's group; the switch is not held.",
	}
}

// moreHarvests is how many times as many harvests the measurement has that tells what they cost.
const moreHarvests = 4

func (s *Scale) print(out *report.Printer, results []Result) {
	nanos := func(ns float64) string { return fmt.Sprintf("%.1f", ns) }
	var rows [][]any
	for _, res := range results {
		if r := res.Roles; r != nil {
			rows = append(rows, []any{
				humanize.Comma(int64(res.Batch)), res.name(), nanos(r.Worker.NsUser), nanos(r.Worker.NsKernel),
				nanos(r.Server.NsUser), nanos(r.Server.NsKernel),
				fmt.Sprintf("%.1f", 100*r.Server.Harvests), nanos(r.Switch.perPair()), fmt.Sprintf("%.1f", r.WorkerBytes),
				fmt.Sprintf("%.1f", r.ServerBytes),
			})
		}
	}
	out.Table("What a pair costs each role, in ns of CPU time and in bytes on the link; harvests in % of the server's CPU",
		[]string{"batch", "baseline", "worker user", "worker kernel", "server user", "server kernel", "harvests %",
			"switch", "worker link B", "server link B"}, rows)
	header := []string{"batch", "workers", "baseline"}
	for _, n := range scaleServers {
		header = append(header, english.Plural(n, "server", ""), "limit", "libra/baseline", "switch CPUs")
	}
	points := slices.SortedStableFunc(slices.Values(s.Points), func(a, b ScalePoint) int {
		return cmp.Or(cmp.Compare(b.Batch, a.Batch), cmp.Compare(a.Workers, b.Workers))
	})
	out.Table("Predicted rates in million pairs a second", header, experiment.Rows(points,
		func(p ScalePoint) []any { return []any{humanize.Comma(int64(p.Batch)), p.Workers, p.Baseline} },
		func(p ScalePoint) []any {
			return []any{nanos(p.PairsPerSecond / 1e6), p.Bottleneck, fmt.Sprintf("%.2f", p.Ratio),
				report.Cell("%.1f", p.SwitchCPUs)}
		}))
	if len(s.Checks) > 0 {
		out.Table("The model against measurements in which each role is held to a share of a CPU; million pairs a second",
			[]string{
				"batch", "baseline", "workers", "share", "limit", "predicted", "measured", "error %", "a worker's CPUs",
				"server's CPUs",
			}, experiment.Pick(s.Checks, func(c ScaleCheck) []any {
				return []any{
					humanize.Comma(int64(c.Batch)), c.Baseline, c.Workers, fmt.Sprintf("%.2f", c.Share), c.Bottleneck,
					fmt.Sprintf("%.2f", c.Predicted/1e6), fmt.Sprintf("%.2f", c.PairsPerSecond/1e6), fmt.Sprintf("%+.0f", 100*c.Error),
					fmt.Sprintf("%.3f", c.WorkerCPUs), fmt.Sprintf("%.3f", c.ServerCPUs),
				}
			}))
	}
	for _, a := range s.Assumptions {
		out.Note("Assumed: %s", a)
	}
}

// charts returns for each batch size the predicted rates against the number of workers
// (push-scale-BATCH).
func (s *Scale) charts() (charts []chart.Chart) {
	for _, batch := range experiment.Distinct(s.Points, func(p ScalePoint) int { return p.Batch }) {
		c := chart.Chart{
			Name:   fmt.Sprintf("push-scale-%d", batch),
			Title:  fmt.Sprintf("pushes of %d pairs: predicted rate of all workers, on machines of their own", batch),
			Legend: chart.TopRight, // beside the curves
			X:      chart.Axis{Label: "workers", Log: true, Ticks: chart.Ticks("%d", scaleWorkers...), Min: 1, Max: 500},
			Y:      chart.Axis{Label: "million pairs per second", Log: true},
		}
		points := slices.DeleteFunc(slices.Clone(s.Points), func(p ScalePoint) bool {
			return p.Batch != batch || p.PairsPerSecond <= 0 // the axis is logarithmic
		})
		chart.AddCurves(&c, points, func(p ScalePoint) string {
			return p.Baseline
		}, func(p ScalePoint) string { return english.Plural(p.Servers, "server", "") },
			func(p ScalePoint) (x, y float64) { return float64(p.Workers), p.PairsPerSecond / 1e6 })
		charts = append(charts, c)
	}
	return charts
}
