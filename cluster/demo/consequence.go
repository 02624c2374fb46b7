// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"

	"github.com/libra-ina/libra/internal/linux/proc"
)

// consequences are what processes say when they end because another process has. The first are
// errors of Libra's own processes, the last those of programs that lost an agent or another rank.
var consequences = []string{
	"left before it had finished",    // of a worker, by server and workers
	"withdrew this worker",           // by the server or the switch, because the job ended
	"the connection broke",           // to the switch or to a server
	"and can this host reach it?",    // likewise, or the peer has not been reached at all
	"the service is stopping",        // of a server or the switch that was asked to end
	"sender not admitted to the job", // because the server has withdrawn it
	"unknown job",                    // because the server has removed it
	"all jobs have ended",            // of an agent
	"did not contribute",             // of a worker of libra glm, by the others
	"which holds the job, has ended", // likewise, of the first
	"PartyGone", "PARTY_GONE",        // another rank of the host
	"JobEnded", "JOB_ENDED", // the agent's part
	"AgentClosed", "AGENT_CLOSED", // by libra run
	"AgentDied", "AGENT_DIED", // with its connections
	"the agent's part in the job has ended", // in Go programs
	"took part in the barrier has ended",    // likewise
	"Connection closed by peer",             // of gloo
	"Connection reset by peer",              // likewise
}

// isConsequence reports that a process failed because another had ended. What it says is in its
// last lines; a program's last lines may belong to a trace that ends with the error.
func isConsequence(e *proc.ExitError) bool {
	if e.Signal != "" {
		return false
	}
	lines := e.Stderr[max(0, len(e.Stderr)-lastWords):]
	for _, line := range lines {
		for _, text := range consequences {
			if strings.Contains(line, text) {
				return true
			}
		}
	}
	return false
}

// lastWords is the number of lines in which a process gives its reason.
const lastWords = 2
