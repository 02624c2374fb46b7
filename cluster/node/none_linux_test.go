// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/wire"
)

// Hosts of a job without an optimiser get exact sums of their steps, hot rows among them, also from
// a server that goes on from a checkpoint; and an error that names the field when they pull.
func TestSumsWithoutWeights(t *testing.T) {
	const hosts, steps = 2, 5
	c := newCluster(t, hosts)
	c.Data, c.Model.Optimizer, c.Model.LearningRate, c.Model.InitialAccumulator = cluster.Data{}, "none", 0, 0
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	startSwitch(t, c)
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	hot, err := loadHotSet(c, 4)
	if err != nil {
		t.Fatal(err)
	}

	next := uint64(0)
	// life is one of the server, in which the hosts take steps.
	life := func(interrupted bool) (*ServerResult, error) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		var (
			result *ServerResult
			server errgroup.Group
			joined [hosts]*joinedJob
			all    errgroup.Group
		)
		server.Go(func() (err error) {
			result, err = RunServer(ctx, Env{Config: c, Log: testLog(t).With("process", "ps")})
			return err
		})
		for i := range joined {
			all.Go(func() (err error) {
				joined[i], err = (AgentMachine{}).joinJob(ctx, &cluster.AgentJob{Name: "sums", Cluster: path, Worker: c.Workers[i].ID}, testLog(t))
				return err
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		for i, j := range joined {
			all.Go(func() error {
				if j.NextStep != next {
					return fmt.Errorf("host %d begins with step %d, not %d", i, j.NextStep, next)
				}
				for step := next; step < next+steps; step++ {
					// A key of all, one of its own that no other step has, and a hot one.
					keys := []uint64{1 << 40, 1<<41 + 2*step + uint64(i), hot.Key(uint32(step))}
					ticket, err := j.Worker.Push(ctx, keys, slices.Repeat([]float32{float32(i + 1), 0.25, 0, float32(step)}, 3))
					if err == nil {
						err = ticket.Wait(ctx)
					}
					if err != nil {
						return err
					}
					sent, answered := j.Worker.HotFrames()
					sums, err := j.Reduce(ctx, step, agent.Arrival{HotSent: sent, HotAnswered: answered})
					if err != nil {
						return err
					}
					want := map[uint64][]float32{
						hot.Key(uint32(step)): {3, 0.5, 0, 2 * float32(step)}, 1 << 40: {3, 0.5, 0, 2 * float32(step)},
						1<<41 + 2*step: {1, 0.25, 0, float32(step)}, 1<<41 + 2*step + 1: {2, 0.25, 0, float32(step)},
					}
					if len(sums.Keys) != len(want) {
						return fmt.Errorf("step %d has the keys %v", step, sums.Keys)
					}
					for at, key := range sums.Keys {
						if got := sums.Rows[4*at:][:4]; !slices.Equal(got, want[key]) {
							return fmt.Errorf("step %d, key %d: %v, want %v", step, key, got, want[key])
						}
					}
				}
				err := j.Worker.Pull(ctx, []uint64{1 << 40}, make([]float32, 4))
				if !errors.Is(err, wire.Refusal{Code: wire.CodeNoWeights}) || !strings.Contains(err.Error(), "model.optimizer") {
					return fmt.Errorf("a pull: %w", err)
				}
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		next += steps
		if interrupted {
			interrupt()
		}
		for _, j := range joined {
			_ = j.leaveJob(!interrupted)
		}
		err := server.Wait()
		return result, err
	}

	if _, err := life(true); !errors.Is(err, context.Canceled) {
		t.Fatalf("the server that was interrupted ended with %v", err)
	}
	cfg, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	if store, attachment, err := ps.Restore(c.Server.Checkpoint, cfg); err != nil || store.Len() != 0 || !strings.Contains(string(attachment), fmt.Sprintf(`"step":%d`, steps)) {
		t.Fatalf("the checkpoint: %s, %v", attachment, err)
	}
	result, err := life(false)
	if err != nil || result.Rows != 0 || result.WeightsSHA256 != "" || result.Steps != steps || result.HotPairs == 0 {
		t.Fatalf("the server that has gone on ended with %+v, %v", result, err)
	}

	with := *c
	with.Model.Optimizer, with.Model.LearningRate = "sgd", 1
	if _, err := RunServer(soon(t), Env{Config: &with, Log: testLog(t)}); err == nil || !strings.Contains(err.Error(), "optimiser is none, the job's is sgd") {
		t.Errorf("with an optimiser it begins with the checkpoint of sums alone: %v", err)
	}
}
