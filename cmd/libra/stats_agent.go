// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os/user"
	"slices"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/internal/report"
)

// askAgent asks an agent. The returned statistics report the error, too.
func askAgent(ctx context.Context, socket string) (*AgentStatistics, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	stats, err := agent.Ask(ctx, socket)
	if err != nil {
		return &AgentStatistics{Socket: socket, Error: err.Error()}, err
	}
	return &AgentStatistics{Socket: socket, Stats: &stats}, nil
}

func (a *AgentStatistics) print(out *report.Printer) {
	out.Table("Agent at "+a.Socket, []string{"", ""},
		append([][]any{{"jobs", len(a.Stats.Jobs)}}, codeRows("refused: ", a.Stats.Refused)...))
	for _, j := range a.Stats.Jobs {
		rows := [][]any{{"clients", len(j.Clients)}, {"memory", humanize.IBytes(uint64(j.Memory))},
			{"hot pairs sent", count(j.PairsSent)}, {"hot pairs added up before", count(j.PairsAdded)},
			{"gradients rounded to 0", count(j.Vanished)}, {"hot frames not at the server", humanize.IBytes(uint64(j.LogBytes))},
			{"pushes that waited for room for them", count(j.LogWaits)}, {"hot frames settled", count(j.Settled)}}
		out.Table("Job "+j.Name, []string{"", ""}, append(rows, codeRows("ended: ", j.Ended)...))
		printLatencies(out, "Times of job "+j.Name, j.Latencies)
		if len(j.Clients) > 0 {
			out.Table("Clients of job "+j.Name, []string{"", "name", "user", "process", "memory", "pushes", "pairs", "failed",
				"pulls"}, clientRows(j.Clients))
		}
		for _, c := range j.Clients {
			if len(c.FailedBy) > 0 {
				out.Table(fmt.Sprintf("Failed pushes of client %d", c.Client), []string{"", ""}, codeRows("", c.FailedBy))
			}
		}
	}
}

func clientRows(clients []agent.ClientStats) (rows [][]any) {
	for _, c := range clients {
		name := strconv.FormatUint(uint64(c.User), 10)
		if known, err := user.LookupId(name); err == nil {
			name = known.Username
		}
		rows = append(rows, []any{
			c.Client, c.Name, name, c.Process, humanize.IBytes(c.Memory), count(c.Pushes), count(c.KeysPushed),
			count(c.Failed), count(c.Pulls),
		})
	}
	return rows
}

// codeRows are counts by code, in the words of the codes.
func codeRows(prefix string, counts map[agent.Code]uint64) (rows [][]any) {
	for _, code := range slices.Sorted(maps.Keys(counts)) {
		text := code.String()
		if code == 0 {
			text = "the client closed its socket, or died"
		}
		rows = append(rows, []any{prefix + text, count(counts[code])})
	}
	return rows
}
