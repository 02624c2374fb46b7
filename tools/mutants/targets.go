// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// A target is a package whose code is mutated, and the tests that guard it, in
// the order in which they run: its own fast ones first; those of dependants
// only where its own do not guard it.
type target struct {
	dir    string // "xdp" for the C of the XDP program
	stages []stage
}

// A stage is one run of a package's tests.
type stage struct {
	dir       string
	run, skip string // as -test.run and -test.skip; empty: all, none
	flags     []string
}

// own is a package that only its own tests guard.
func own(dir string) target { return target{dir, []stage{{dir: dir}}} }

// targets are the packages on which Libra's promises rest. Left out are: cmd/libra, bench, study,
// cluster/demo, internal/report and internal/linux/testbed (they print, measure and build networks;
// their tests run whole clusters), p4 and other generated code, and the packages that serve tests
// only (aggregator/conformance, aggregator/vectors).
var targets = []target{
	own("internal/num/fixedpoint"),
	own("internal/num/scaled"),
	{"wire", []stage{
		{dir: "wire", skip: "^TestDissector"},
		{dir: "wire", run: "^TestDissector"}, // through tshark
	}},
	own("lut"),
	own("codec"),
	own("packer"),
	own("packer/heat"),
	own("packer/placement"),
	own("retransmit"),
	own("aggregator"),
	{"ps", []stage{{dir: "ps"}, {dir: "cluster/node"}}},
	own("cluster"),
	{"cluster/plan", []stage{{dir: "cluster/plan"}, {dir: "cmd/libra", run: "^TestPlan"}}},
	{"train/data", []stage{{dir: "train/data"}, {dir: "train"}}},
	own("train/settings"),
	own("train"),
	own("train/weights"),
	own("train/glm"),
	{"control/access", []stage{{dir: "control/access"}, {dir: "control"}}},
	{"control", []stage{{dir: "control"}, {dir: "cluster/node"}}},
	{"cluster/node", []stage{
		{dir: "cluster/node", skip: longNode},
		{dir: "cluster/node", run: longNode},
		{dir: "cmd/libra", run: "^(TestCluster|TestSynthetic|TestAgent)"},
		{dir: "p4", run: "^TestDaemon"},
	}},
	own("link/fault"),
	own("internal/linux/sys"),
	own("internal/linux/neigh"),
	own("internal/linux/netwatch"),
	own("internal/file"),
	own("internal/trace"),
	own("telemetry"),
	own("telemetry/export"),
	own("telemetry/verdict"),
	own("link"),
	own("transport/endpoint"),
	own("transport/reducer"),
	own("transport/ring"),
	{"transport", []stage{
		{dir: "transport", skip: longTransport},
		{dir: "transport", run: longTransport},
	}},
	{"bpf", []stage{
		{dir: "bpf", skip: longBPF},
		{dir: "bpf", run: longBPF},
	}},
	own("afxdp"),
	{"agent/agentproto", []stage{{dir: "agent/agentproto"}, {dir: "agent"}}},
	{"agent/agentclient", []stage{{dir: "agent/agentclient"}, {dir: "agent"}}},
	own("agent"),
	own("local"),
	{xdp, []stage{
		{dir: "bpf", run: "^TestReplaysVectors$"}, // takes seconds, and kills most mutants
		{dir: "bpf", run: comparisons, flags: []string{"-frames=50000"}},
		{dir: "bpf", skip: longBPF},
		{dir: "bpf", run: longBPF},
	}},
}

// xdp is the target that is no Go package.
const xdp = "xdp"

// comparisons are the tests that give random frames to the program and to the model, and others
// that detect many changes.
const comparisons = "^(TestAggregateEqualsModel|TestReadmission|TestBudget|TestConversionsEqualModel|TestRefusedFramesChangeNothing|TestStaleIndexIsRefused)$"

// longBPF are the tests of bpf that take most of its time.
const longBPF = "^(TestRoundsExactlyOnce|TestAggregateEqualsModel)$"

// longNode are the tests of cluster/node that wait for a bridge or for time.
const longNode = "^(TestEveryFrame|TestRoutes|TestBridge|TestVLAN|TestFrames|TestThreadNAPI)"

// longTransport are the tests of transport that take most of its time.
const longTransport = "^(TestReduce(XDP|BackendsInteroperate|)|TestExactSums(XDP|OnAnyNetwork|)|TestLinkDown|TestBackendsInteroperate)$"

// choose finds the targets that a comma-separated list names.
func choose(names string) ([]target, error) {
	if names == "" {
		return targets, nil
	}
	var chosen []target
next:
	for name := range strings.SplitSeq(names, ",") {
		name = strings.Trim(strings.TrimPrefix(name, "./"), "/")
		for _, t := range targets {
			if t.dir == name {
				chosen = append(chosen, t)
				continue next
			}
		}
		return nil, fmt.Errorf("no mutants are made of %q; packages: %s", name, strings.Join(dirs(), ", "))
	}
	return chosen, nil
}

func dirs() []string {
	var d []string
	for _, t := range targets {
		d = append(d, t.dir)
	}
	return d
}
