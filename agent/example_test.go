// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/ps"
)

// A process pushes through the agent; rows 1 and 2 are summed by the aggregator, row 3 by the
// parameter server.
func Example() {
	err := func() (err error) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		job, err := local.Open(ctx, local.Config{Dim: 1, Hot: []uint64{1, 2}, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1}})
		if err != nil {
			return err
		}
		defer job.Close()
		dir, err := os.MkdirTemp("", "agent")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		socket := filepath.Join(dir, "agent.sock")
		a, err := agent.Listen(agent.Config{Socket: socket, Jobs: []agent.Job{{Name: "ads", Worker: job.Worker(0), Dim: 1, Exp: ps.DefaultExp}}})
		if err != nil {
			return err
		}
		served := make(chan error, 1)
		go func() { served <- a.Serve(ctx) }()
		defer func() {
			cancel()
			err = errors.Join(err, <-served, a.Close())
		}()

		c, err := agentclient.Dial(ctx, socket, agentproto.Hello{Job: "ads", Client: "example"})
		if err != nil {
			return err
		}
		defer c.Close()
		keys, weights := []uint64{1, 2, 3}, make([]float32, 3)
		if _, err := c.Push(ctx, keys, []float32{0.5, -1, -2}); err != nil {
			return err
		}
		if err := c.Flush(ctx); err != nil {
			return err
		}
		if err := job.Commit(ctx); err != nil { // the server's work at the end of a step
			return err
		}
		err = c.Pull(ctx, keys, weights)
		fmt.Println(weights)
		return err
	}()
	if err != nil {
		panic(err)
	}
	// Output: [-0.5 1 2]
}
