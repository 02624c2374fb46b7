// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"

	"github.com/libra-ina/libra/bench/allreduce"
	"github.com/libra-ina/libra/bench/chaos"
	"github.com/libra-ina/libra/bench/engine"
	"github.com/libra-ina/libra/bench/glm"
	"github.com/libra-ina/libra/bench/latency"
	"github.com/libra-ina/libra/bench/push"
	"github.com/libra-ina/libra/bench/ring"
	"github.com/libra-ina/libra/bench/soak"
	"github.com/libra-ina/libra/bench/tenants"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// unsupported stands for an experiment, and unsupportedChild for its processes, on systems other
// than Linux.
func unsupported[Config, Report any](context.Context, Config) (*Report, error) {
	return nil, experiment.ErrUnsupported
}

func unsupportedChild([]string) error { return experiment.ErrUnsupported }

var (
	runChaos                     = unsupported[chaos.Config, chaos.Report]
	runAllreduce, allreduceChild = unsupported[allreduce.Config, allreduce.Report], unsupportedChild
	runEngine, engineChild       = unsupported[engine.Config, engine.Report], unsupportedChild
	runInterface                 = unsupported[engine.InterfaceConfig, engine.Report]
	runBenchGLM, glmChild        = unsupported[glm.Config, glm.Report], unsupportedChild
	runLatency                   = unsupported[latency.Config, latency.Report]
	runPush, pushChild           = unsupported[push.Config, push.Report], unsupportedChild
	runRing                      = unsupported[ring.Config, ring.Report]
	runSoak, soakChild           = unsupported[soak.Config, soak.Report], unsupportedChild
	runTenants, tenantsChild     = unsupported[tenants.Config, tenants.Report], unsupportedChild
)
