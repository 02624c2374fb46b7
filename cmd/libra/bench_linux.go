// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/libra-ina/libra/bench/allreduce"
	"github.com/libra-ina/libra/bench/chaos"
	"github.com/libra-ina/libra/bench/engine"
	"github.com/libra-ina/libra/bench/glm"
	"github.com/libra-ina/libra/bench/latency"
	"github.com/libra-ina/libra/bench/push"
	"github.com/libra-ina/libra/bench/ring"
	"github.com/libra-ina/libra/bench/soak"
	"github.com/libra-ina/libra/bench/tenants"
)

// The experiments that need Linux, and their processes.
var (
	runChaos                             = chaos.Run
	runAllreduce, allreduceChild         = allreduce.Run, allreduce.RunChild
	runEngine, runInterface, engineChild = engine.Run, engine.RunInterface, engine.RunChild
	runBenchGLM, glmChild                = glm.Run, glm.RunChild
	runLatency                           = latency.Run
	runPush, pushChild                   = push.Run, push.RunChild
	runRing                              = ring.Run
	runSoak, soakChild                   = soak.Run, soak.RunChild
	runTenants, tenantsChild             = tenants.Run, tenants.RunChild
)
