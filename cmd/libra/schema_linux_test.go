// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// TestMeasurementsConform runs each benchmark for a moment. The results on a busy machine,
// including the verdict of a soak, do not matter here.
func TestMeasurementsConform(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for path, args := range map[string][]string{
		"libra bench engine":    {"--measure", "echo,request-response", "--sizes", "190", "--baseline", "udp,dpdk-af_xdp", "--rounds", "1", "--duration", "50ms"},
		"libra bench push":      {"--workers", "1", "--batches", "32", "--baseline", "zeromq-hash", "--scale", "--rounds", "1", "--duration", "50ms"},
		"libra bench latency":   {"--workers", "1", "--push-rows", "64", "--sample", "1", "--senders", "1,3", "--frames", "200", "--rounds", "1", "--duration", "50ms"},
		"libra bench ring":      {"--workers", "2", "--values", "3000", "--line-rate", "1000", "--growth", "2", "--growth-rate", "500", "--rounds", "1", "--operations", "1"},
		"libra bench allreduce": {"--workers", "2", "--baseline", "reduce,udp,libra-lossy,openmpi", "--rounds", "1", "--operations", "200"},
		"libra bench glm":       {"--shapes", "real_sim", "--batches", "64", "--workers", "2", "--rows", "128", "--epochs", "1", "--rounds", "1", "--scale", "1,2", "--operations", "100"},
		"libra bench tenants":   {"--duration", "300ms"},
		"libra bench soak":      {"--duration", "2s"},
	} {
		t.Run(path, func(t *testing.T) {
			stdout, stderr, _ := output(t, append(append(strings.Fields(path)[1:], args...), "--json")...)
			if stdout == "" {
				t.Fatal(stderr)
			}
			conforms(t, path, stdout)
		})
	}
}
