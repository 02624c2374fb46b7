// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
)

// Agents are restarted host by host, while their job goes from a switch that has ended to a
// standby, from there to the switch, which is back, and, by drains, to and fro: everything that was
// accepted counts once, and the sums of steps are those of one push of each host.
func TestAgentsAreRestartedAtStandbys(t *testing.T) {
	for name, run := range map[string]func(*testing.T, func(*restarts, int), ...func(*cluster.Config)){
		"without steps": func(t *testing.T, moves func(*restarts, int), change ...func(*cluster.Config)) {
			restartUnderLoad(t, true, time.Millisecond, moves, change...)
		},
		"without steps, harvested seldom": func(t *testing.T, moves func(*restarts, int), change ...func(*cluster.Config)) {
			restartUnderLoad(t, false, time.Minute, moves, change...)
		},
		"between steps": restartBetweenSteps,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c *cluster.Config
			var stops []func()
			defer func() {
				for _, stop := range stops {
					stop()
				}
			}()
			aggregator := func(at int) {
				_, stop := runAggregator(t, c, at)
				stops = append(stops, stop)
			}
			drain := func(to int) {
				if answer, err := drainJob(t, c, to); err != nil || answer.To == nil || int(answer.GetTo()) != to {
					t.Errorf("the job moves to %d: %v, %v", to, answer, err)
				}
			}
			again := func(h *restarts) {
				for limit := time.Now().Add(time.Minute); !h.hasBegun(); time.Sleep(time.Millisecond) {
					if time.Now().After(limit) {
						t.Fatalf("the job is at no aggregator:\n%s", h.log.String())
					}
				}
			}
			run(t, func(h *restarts, restart int) {
				switch restart {
				case 1:
					aggregator(1)
					h.stopSwitch()
				case 2: // it may be at none yet
					again(h)
				case 3:
					aggregator(0)
					drain(0)
				case 4:
					drain(1)
				}
			}, func(config *cluster.Config) {
				addStandbys(t, config, 1)
				c = config
			})
		})
	}
}

// hasBegun reports whether the job has begun at another aggregator.
func (h *restarts) hasBegun() bool {
	return strings.Contains(h.log.String(), "the job goes on at an aggregator again")
}
