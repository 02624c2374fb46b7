// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A linkRule names packages that some packages never link, not even by way of others. Names that
// end in /... are of a package and all below it.
type linkRule struct {
	of     []string // packages of Libra
	denied []string // in addition to those of Libra outside allowed
	// If not nil, packages of Libra are denied, except those of the rule itself and these.
	allowed []string
}

const (
	grpc      = "google.golang.org/grpc/..."
	ebpf      = "github.com/cilium/ebpf/..."
	netlink   = "github.com/vishvananda/netlink/..."
	transport = module + "transport/..."
)

var linkRules = []linkRule{
	// A study is computed: it needs neither a network nor a kernel.
	{of: []string{module + "study/..."}, denied: []string{grpc, ebpf, netlink}},
	// A packet engine that other programs use alone.
	{of: []string{module + "afxdp"}, denied: []string{grpc}, allowed: []string{module + "internal/..."}},
	// The format, the algorithms and the model say what Libra does, not how it gets there.
	{
		of: []string{
			module + "wire", module + "retransmit", module + "packer", module + "lut",
			module + "codec", module + "aggregator", module + "sched",
		},
		denied: []string{grpc, ebpf, netlink, transport},
	},
	// A program that pushes through a host agent needs the agent's protocol alone. (Tests of clients
	// also run the other end.)
	{of: []string{module + "agent/agentproto", module + "agent/agentclient", module + "clients/..."}, denied: []string{grpc, ebpf, transport}},
	// What the switch program declares can be read without a control plane.
	{of: []string{module + "p4/program"}, denied: []string{grpc}, allowed: []string{}},
}

// matches reports whether a package is named by one of some patterns.
func matches(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		above, tree := strings.CutSuffix(p, "/...")
		return path == above || tree && strings.HasPrefix(path, above+"/")
	})
}

// linkedAgainst returns how each denied package gets into a package of a rule: the shortest chain
// of imports. all are the imports of each package. A rule about no package at all is wrong too.
func linkedAgainst(rules []linkRule, all map[string][]string) (chains []string) {
	for _, rule := range rules {
		for _, of := range rule.of {
			found := false
			for path := range all {
				if matches(path, []string{of}) {
					found = true
					chains = append(chains, rule.chains(path, all)...)
				}
			}
			if !found {
				chains = append(chains, of+" does not exist")
			}
		}
	}
	slices.Sort(chains)
	return chains
}

func (r linkRule) chains(from string, all map[string][]string) (chains []string) {
	by := map[string]string{from: ""} // the first package that imports it
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, p := range all[queue[0]] {
			if _, seen := by[p]; seen {
				continue
			}
			by[p] = queue[0]
			ours := strings.HasPrefix(p, module) && !matches(p, r.of)
			if !matches(p, r.denied) && (r.allowed == nil || !ours || matches(p, r.allowed)) {
				queue = append(queue, p)
				continue
			}
			chain := p // what it imports itself is not listed too
			for q := queue[0]; q != ""; q = by[q] {
				chain = q + " > " + chain
			}
			chains = append(chains, strings.ReplaceAll(chain, module, ""))
		}
	}
	return chains
}

// TestNeverLinked holds the programs that use a part of Libra to what they are meant to link, on
// this platform.
func TestNeverLinked(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports", "../...")
	var said strings.Builder // such as that packages import each other in a circle
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd, err, said.String())
	}
	all := map[string][]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p.Imports
	}
	for _, chain := range linkedAgainst(linkRules, all) {
		t.Errorf("never to be linked: %s", chain)
	}
}

// TestLinksAreFound looks for packages that are linked directly, by way of others, and not at all.
func TestLinksAreFound(t *testing.T) {
	got := linkedAgainst([]linkRule{
		{of: []string{module + "study/...", module + "studio"}, denied: []string{grpc}},
		{of: []string{module + "engine"}, allowed: []string{module + "internal/..."}},
	}, map[string][]string{
		module + "study/a":    {"fmt", module + "p4"},
		module + "study/b":    {"google.golang.org/grpc/codes", "google.golang.org/grpcs"},
		module + "p4":         {"fmt", "google.golang.org/grpc"},
		module + "engine":     {"fmt", module + "internal/x", "google.golang.org/grpc"},
		module + "internal/x": {module + "wire", module + "engine"},
	})
	want := []string{
		"engine > internal/x > wire",
		module + "studio does not exist",
		"study/a > p4 > google.golang.org/grpc",
		"study/b > google.golang.org/grpc/codes",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
