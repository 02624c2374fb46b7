// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package simulation

import "errors"

// EveryLife lists the kinds of life that can run here.
func EveryLife() []Life { return []Life{Workers, Clusters, Reducers, Rings} }

// RunAgents runs the life of host agents, which exist on Linux only.
func RunAgents(Bubble, Options) (AgentsResult, error) {
	return AgentsResult{}, errors.New("simulation: lives of agents need Linux")
}
