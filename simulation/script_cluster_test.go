// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/simulation/world"
)

// clusterScript is a life of a cluster whose trouble is the lines of a text. The seed decides the
// training and the schedule; the operator starts what has ended, as in every life.
type clusterScript struct {
	*clusterLife

	act *world.Actor // of the script
}

// liveClusterScript runs a script. Its first line has the words that choose the training.
func liveClusterScript(t *testing.T, name, text string, o Options) error {
	words, lines, first := []string(nil), strings.Split(text, "\n"), 0
	for i, line := range lines {
		if strings.HasPrefix(line, "cluster") {
			words, first = strings.Fields(line)[1:], i+1
			break
		}
	}
	for _, word := range words {
		switch word {
		case "once":
			o.Cut.Once = true
		case "standbys":
			o.Kinds |= Standby
		default:
			return fmt.Errorf("%s:%d: %s: no such property of a cluster", name, first, word)
		}
	}
	c, err := newCluster(t.TempDir(), o)
	if err != nil {
		return err
	}
	s := &clusterScript{clusterLife: c}
	Clusters.labelled(o, func() {
		InTest(t)(func() {
			c.beginLife()
			s.act = c.NewActor("script", nil)
			commands := compiled(clusterCommands)
			s.act.Start(func() {
				for i, line := range lines[first:] {
					doLine(s, c.World, commands, fmt.Sprintf("%s:%d", name, first+i+1), line)
					if c.Over() || c.Failed() {
						return
					}
				}
				c.Heal()
			})
			_, err = c.finishLife(func() bool { return s.act.Gone() && c.phase == len(c.epochs) })
		})
	})
	return err
}

const role = `(switch|standby \d+|server|worker \d+)`

var breakages = map[string]int{"at both ends": 0, "half": 1, "at one end": 2}

// clusterCommands are what lines of clusters may say.
var clusterCommands = map[string]func(s *clusterScript, m []string) error{
	`await ` + role: func(s *clusterScript, m []string) error {
		return s.await(m[0], func() bool { p := s.procs[m[0]]; return p != nil && p.ready && !p.Dead() })
	},
	`await checkpoint`: func(s *clusterScript, _ []string) error {
		return s.await("a checkpoint", func() bool { return s.disk.Durable(checkpointPath) })
	},
	`await write (\d+)`: func(s *clusterScript, m []string) error {
		n, err := strconv.Atoi(m[0])
		s.Mu.Lock()
		n += s.disk.Writes()
		s.Mu.Unlock()
		return errors.Join(err, s.await("a write", func() bool { return s.moments[byWrites] >= n }))
	},
	`await swap`: func(s *clusterScript, _ []string) error {
		s.Mu.Lock()
		n := s.fence.count[swaps]
		s.Mu.Unlock()
		return s.await("a swap", func() bool { return s.fence.count[swaps] > n })
	},
	`await training (\d+)`: func(s *clusterScript, m []string) error {
		n, err := strconv.Atoi(m[0])
		return errors.Join(err, s.await("a training", func() bool { return s.phase >= min(n, len(s.epochs)) }))
	},
	`wait (\S+)`: func(s *clusterScript, m []string) error {
		d, err := time.ParseDuration(m[0])
		s.act.Sleep("waits", d)
		return err
	},
	`kill ` + role: func(s *clusterScript, m []string) error {
		s.happened |= Crash
		s.crashRole(m[0], false)
		return nil
	},
	`power off ` + role: func(s *clusterScript, m []string) error {
		s.happened |= Power
		s.crashRole(m[0], true)
		return nil
	},
	`stop ` + role: func(s *clusterScript, m []string) error {
		s.happened |= Stop
		s.stopRole(m[0])
		return nil
	},
	`pause ` + role: func(s *clusterScript, m []string) error {
		s.happened |= Pause
		h := s.hostOf(s.addressOf(m[0]))
		h.Pause()
		s.paused = append(s.paused, h)
		return nil
	},
	`resume ` + role: func(s *clusterScript, m []string) error {
		s.hostOf(s.addressOf(m[0])).Resume()
		return nil
	},
	`(cut|rejoin) ` + role + ` -> ` + role: func(s *clusterScript, m []string) error {
		s.happened |= Partition
		from, to := s.hostOf(s.addressOf(m[1])), s.hostOf(s.addressOf(m[2]))
		if m[0] == "cut" {
			s.Net.Partition(from, to)
		} else {
			s.Net.Rejoin(from, to)
		}
		return nil
	},
	`break connection (\d+) (at both ends|at one end|half)`: func(s *clusterScript, m []string) error {
		n, err := strconv.Atoi(m[0])
		s.conns.Break(world.Breakage{Which: n, How: breakages[m[1]]})
		return err
	},
	`break ` + role + ` -> ` + role + ` (at both ends|at one end|half)`: func(s *clusterScript, m []string) error {
		at := netip.AddrPortFrom(s.addressOf(m[1]), controlPort)
		if p := s.procs[m[0]]; p == nil || !s.conns.BreakOf(p.Process, at, breakages[m[2]]) {
			return fmt.Errorf("%s has no connection with %s", m[0], m[1])
		}
		return nil
	},
	`expect (kills|resumes|stops) = (\d+)`: func(s *clusterScript, m []string) error {
		return isNumber(map[string]int{"kills": s.result.Kills, "resumes": s.result.Resumes, "stops": s.result.Stops}[m[0]], m[1])
	},
}

// await waits for something, or for the end of the last training.
func (s *clusterScript) await(what string, happens func() bool) error {
	over := func() bool { return s.phase == len(s.epochs) }
	s.act.Park("waits for "+what, func() bool { return happens() || over() }, time.Now().Add(clusterBound))
	if !happens() && !over() {
		return fmt.Errorf("%s does not come", what)
	}
	return nil
}
