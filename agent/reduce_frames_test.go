// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// The host meets the others by frames only if the job allows it, its parties want sums, and none of
// its gradients was refused. Otherwise, and if the server has no sums for frames, it calls the
// job's service.
func TestReduceInFrames(t *testing.T) {
	inFrames := agent.Sums{Keys: []uint64{3, 70}, Rows: []float32{1, 2, 3, 4}}
	fromService := agent.Sums{Keys: []uint64{8}, Rows: []float32{5, 6}}
	const barrier, reduce = agentproto.Barrier, agentproto.Reduce
	for name, c := range map[string]struct {
		frames, has, refused bool // the job has sums in frames; the server has some; a gradient is refused
		op                   agentproto.Op
		asked                bool // the server, by frames
		want                 *agent.Sums
	}{
		"in frames":                    {frames: true, has: true, op: reduce, asked: true, want: &inFrames},
		"none in frames":               {frames: true, op: reduce, asked: true, want: &fromService},
		"a job without frames":         {has: true, op: reduce, want: &fromService},
		"a refused gradient":           {frames: true, has: true, refused: true, op: reduce},
		"a barrier":                    {frames: true, has: true, op: barrier},
		"a barrier after a refusal":    {frames: true, has: true, refused: true, op: barrier},
		"a barrier and no such frames": {has: true, op: barrier},
	} {
		t.Run(name, func(t *testing.T) {
			var arrivals, reduces, barriers atomic.Int32
			w := coldWorker(t, func(s *transport.Server, end wire.StepEnd) bool {
				arrivals.Add(1)
				if c.has {
					s.GiveSums(end.Step, inFrames.Keys, inFrames.Rows)
				}
				return c.has
			})
			socket := filepath.Join(shortDir(t), "agent.sock")
			serve(t, agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{
				Name: jobName, Worker: w, Dim: dim, SumsInFrames: c.frames,
				Barrier: func(context.Context, uint64) error {
					barriers.Add(1)
					return nil
				},
				Reduce: func(_ context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
					reduces.Add(1)
					if a.Refused != nil {
						return agent.Sums{}, a.Refused
					}
					return fromService, nil
				},
			}}})
			client, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: jobName, Parties: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if c.refused {
				if _, err := client.Push(within(t), []uint64{3}, []float32{1, float32(math.Inf(1))}); err != nil {
					t.Fatal(err)
				}
			}
			if c.op == barrier {
				err = client.Barrier(within(t), 0)
			} else {
				var got agent.Sums
				got.Keys, got.Rows, err = client.Reduce(within(t), 0)
				if c.want != nil && (!slices.Equal(got.Keys, c.want.Keys) || !slices.Equal(got.Rows, c.want.Rows)) {
					t.Errorf("the sums are %v, want %v", got, *c.want)
				}
			}
			if dropped := c.refused && c.op == reduce; dropped != errors.Is(err, agentproto.Dropped) || !dropped && err != nil {
				t.Error(err)
			}
			if got := arrivals.Load() > 0; got != c.asked {
				t.Errorf("the server was asked by frames: %v", got)
			}
			wantReduces, wantBarriers := int32(1), int32(0)
			if c.op == barrier {
				wantReduces, wantBarriers = 0, 1
			} else if c.want == &inFrames {
				wantReduces = 0
			}
			if reduces.Load() != wantReduces || barriers.Load() != wantBarriers {
				t.Errorf("the service was asked for sums %d times, and for barriers %d times", reduces.Load(), barriers.Load())
			}
		})
	}
}

// A client's sums stay those of its last REDUCE, whatever steps others reduce in the meantime.
func TestSumsAreKept(t *testing.T) {
	const parties, steps = 3, 40
	random := rand.New(rand.NewPCG(1, 2))
	sumsOf := func(step uint64) (s agent.Sums) {
		for i := range 1 + (step*7)%11 {
			s.Keys = append(s.Keys, 3*i+step)
			s.Rows = append(s.Rows, float32(step), float32(i))
		}
		return s
	}
	w := coldWorker(t, func(s *transport.Server, end wire.StepEnd) bool {
		sums := sumsOf(end.Step)
		s.GiveSums(end.Step, sums.Keys, sums.Rows)
		return true
	})
	socket := filepath.Join(shortDir(t), "agent.sock")
	serve(t, agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{{
		Name: jobName, Worker: w, Dim: dim, SumsInFrames: true,
		Barrier: func(context.Context, uint64) error { return nil },
		Reduce: func(context.Context, uint64, agent.Arrival) (agent.Sums, error) {
			return agent.Sums{}, errors.New("not in frames")
		},
	}}})
	ctx := within(t)
	clients, last := make([]*agentclient.Client, parties), make([]*agent.Sums, parties)
	for i := range clients {
		c, err := agentclient.Dial(ctx, socket, agentproto.Hello{Job: jobName, Parties: parties})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients[i] = c
	}
	for step := range uint64(steps) {
		var group sync.WaitGroup
		for i, c := range clients {
			if random.IntN(3) > 0 {
				sums := sumsOf(step)
				last[i] = &sums
				group.Go(func() {
					if keys, rows, err := c.Reduce(ctx, step); err != nil || !slices.Equal(keys, sums.Keys) || !slices.Equal(rows, sums.Rows) {
						t.Errorf("step %d, party %d: %v %v, %v", step, i, keys, rows, err)
					}
				})
			} else {
				group.Go(func() {
					if err := c.Barrier(ctx, step); err != nil {
						t.Errorf("step %d, party %d: %v", step, i, err)
					}
				})
			}
		}
		group.Wait()
		for i, c := range clients {
			if last[i] == nil {
				continue
			}
			n := len(last[i].Keys)
			keys, rows := make([]uint64, n), make([]float32, n*dim)
			if err := c.Sums(ctx, 0, keys, rows); err != nil || !slices.Equal(keys, last[i].Keys) || !slices.Equal(rows, last[i].Rows) {
				t.Errorf("after step %d party %d has %v %v, %v", step, i, keys, rows, err)
			}
		}
	}
}

// If frames give no sums, the service also gets the number of the host's hot frames.
func TestHotFramesAfterFrames(t *testing.T) {
	var sent atomic.Uint32
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].SumsInFrames = true // which this server refuses
		c.Jobs[0].Reduce = func(_ context.Context, _ uint64, a agent.Arrival) (agent.Sums, error) {
			sent.Store(a.HotSent)
			return agent.Sums{}, nil
		}
	})
	c := b.dial(party(1))
	_, err := c.Push(within(t), []uint64{1}, []float32{1, 1})
	must(t, err)
	before := sent.Load()
	if _, _, err := c.Reduce(within(t), 0); err != nil || sent.Load() == before {
		t.Errorf("%d hot frames are told, as before: %v", before, err)
	}
}
