// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"strings"
	"testing"
)

// What processes have counted is summed over hosts, labels, and processes that were started again.
func TestCountersSurviveRestarts(t *testing.T) {
	c := counters{last: map[string]uint64{}}
	say := func(host, text string) { c.read(strings.NewReader(text), host) }
	say("a", "# HELP x\nlibra_worker_settled_frames_total{job=\"1\",worker=\"1\"} 5\nlibra_worker_frames 9\n")
	say("b", "libra_worker_settled_frames_total{job=\"1\",worker=\"2\"} 1e2\n")
	say("a", "libra_worker_settled_frames_total{job=\"1\",worker=\"1\"} 7\nlibra_job_duplicates_total{job=\"1\"} 3\n")
	say("a", "libra_worker_settled_frames_total{job=\"1\",worker=\"1\"} 2\n") // started again
	say("b", "libra_server_duplicates_total{job=\"1\"} 4\nlibra_worker_repeated_frames_total{op=\"hot\"} 6\nlibra_worker_repeated_frames_total{op=\"cold\"} 1\n")
	if got, want := c.total(), (Counts{Settled: 109, Duplicates: 7, Retransmissions: 7}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
