// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/num/portable"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// trouble plans the trouble of a cluster, and its end.
func (c *clusterLife) trouble() {
	s := c.s
	p, rng := &s.plan, s.random(streamTrouble)
	roles := c.roles
	hosts := make([]*host, len(roles))
	for i, role := range roles {
		hosts[i] = c.hostOf(c.addressOf(role))
	}
	for n := range 1 + rng.IntN(most-1) {
		at := time.Duration(float64(p.trouble) * rng.Float64())
		clock, moment := rng.IntN(3), rng.IntN(1+rng.IntN(1500))
		if early := time.Duration(rng.IntN(200)) * time.Millisecond; rng.IntN(3) > 0 {
			at = min(at, early) // most trainings are shorter
		}
		lasts := time.Duration(float64(time.Millisecond) * portable.Pow(15_000, rng.Float64()))
		x, y := rng.IntN(len(hosts)), rng.IntN(len(hosts))
		if rng := s.named(fmt.Sprintf("trouble %d", n)); rng.IntN(4) == 0 {
			clock, moment, x = byWrites, rng.IntN(100), slices.Index(roles, theServer)
		}
		which, how := rng.IntN(64), rng.IntN(3)
		kind := [...]Kinds{Partition, Pause, Crash, Reset, Power, Stop}[rng.IntN(6)]
		if p.kinds&kind == 0 || slices.Contains(s.options.Cut.Without, n) {
			continue
		}
		a, b := hosts[x], hosts[y]
		begin := func() {
			if s.healed {
				return
			}
			if kind != Reset {
				c.happened |= kind
			}
			s.tell("%v of %s and %s\n", kind, a.name, b.name)
			switch kind {
			case Partition:
				s.net.cut[[2]*host{a, b}]++
				s.after(lasts, func() { s.net.cut[[2]*host{a, b}]-- })
			case Pause:
				c.result.Pauses++
				a.pause()
				c.paused = append(c.paused, a)
				s.after(lasts, a.resume)
			case Reset:
				c.tcp.breakOne(which, how)
			case Stop:
				if victim := c.procs[roles[x]]; victim != nil {
					c.result.Stops++
					victim.stopped = true
					victim.cancel()
					s.after(stopLimit, func() {
						if c.procs[roles[x]] == victim && !victim.dead.Load() && !a.paused {
							s.fail("%s was told to end %v ago, and does not: %s", victim.name, stopLimit, s.state())
						}
					})
				}
			case Crash, Power:
				s.mu.Lock()
				defer s.mu.Unlock()
				if kind == Power && roles[x] == theServer {
					c.disk.losePower()
				}
				if victim := c.procs[roles[x]]; victim != nil && !victim.dead.Load() {
					c.kill(victim, kind == Power)
					if kind == Power {
						c.result.PowerLosses++
					}
					c.result.Kills++
				}
			}
		}
		switch {
		case clock == byTime:
			s.after(at, begin)
		case clock == byMessages && kind == Reset:
			c.breaks[moment] = breakage{which, how}
		default:
			c.planned[clock] = append(c.planned[clock], planned{moment, begin})
		}
	}
	c.strangers(hosts)
	s.after(p.trouble, func() {
		s.healed, s.healedAt = true, time.Now()
		clear(s.net.cut)
		for _, h := range hosts {
			h.resume()
		}
	})
}

// Trouble is planned by time, by the number of frames or control messages sent, or by the server's
// disk writes.
const (
	byFrames = iota
	byMessages
	byTime
	byWrites
)

type planned struct {
	moment int
	begin  func()
}

// moment counts an event, and starts the trouble that is planned for it.
func (c *clusterLife) moment(clock int) {
	if c == nil {
		return
	}
	c.moments[clock]++
	for _, p := range c.planned[clock] {
		if p.moment == c.moments[clock] {
			c.s.after(0, p.begin)
		}
	}
}

// makeHotSet writes the hot set of a training.
func makeHotSet(c *cluster.Config) error {
	model, err := node.Model(c.Model)
	if err != nil {
		return err
	}
	src, err := node.OpenSource(c, data.Shard{})
	if err != nil {
		return err
	}
	defer src.Close()
	hot, err := node.BuildHotSet(src, node.HotSetOptions{Rate: 1, Dim: model.Dim(), Rows: 60})
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := hot.WriteTo(&b); err != nil {
		return err
	}
	return os.WriteFile(c.Job.HotSet, b.Bytes(), 0o600)
}

// reference returns the required final weights of the training.
func reference(c *cluster.Config, guest uint16) (string, error) {
	cfg, err := node.StoreConfig(c)
	if err != nil {
		return "", err
	}
	store, err := ps.New(cfg)
	if err != nil {
		return "", err
	}
	training, err := node.TrainConfig(c)
	if err != nil {
		return "", err
	}
	training.Model = train.FM{Factors: c.Model.Factors, L2: float32(c.Model.L2)} // from the file, whatever the processes read from it
	var sources []data.Source
	for _, w := range c.Workers {
		if w.ID == guest {
			continue // it pushes nothing
		}
		src, err := node.OpenSource(c, c.Shard(w.ID))
		if err != nil {
			return "", err
		}
		defer src.Close()
		sources = append(sources, src)
	}
	if _, err := train.Reference(context.Background(), store, sources, training); err != nil {
		return "", err
	}
	sum := store.Hash()
	return hex.EncodeToString(sum[:]), nil
}

// logWriter puts a process's log into the trace.
type logWriter struct{ p *process }

func (w logWriter) Write(b []byte) (int, error) {
	s := w.p.c.s
	s.tracing.Lock()
	defer s.tracing.Unlock()
	_, err := s.out.Write(append([]byte("          "+w.p.name+": "), b...))
	return len(b), err
}

// noTime removes the time, which the trace has.
func noTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
