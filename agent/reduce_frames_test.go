// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/internal/agentclient"
	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// The host meets the others by frames only if the job says so, its parties want sums, and none of its
// gradients was refused. Otherwise, and where the server has no sums for frames, the job's service is asked.
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
