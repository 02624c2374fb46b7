// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package simulation

import "errors"

// RunAgents runs the life of host agents, which exist on Linux only.
func RunAgents(Bubble, Options) (AgentsResult, error) {
	return AgentsResult{}, errors.New("simulation: lives of agents need Linux")
}
