package main

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/bench/soak"
)

func newBenchSoak() *cobra.Command {
	var (
		c      soak.Config
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Echo for a long time while sockets, interfaces and processes come and go",
		Long: `Runs echo traffic through the packet engine while queues are closed and opened,
the interface goes down and up or away, and the peer is killed and restarted.
Every frame, packet and wake-up must be accounted for, and nothing may grow.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			progress := newSteps(cmd.ErrOrStderr(), "seconds")
			c.Progress = func(s soak.Step) {
				progress.step(int(s.Done/time.Second), int(s.Total/time.Second), s.String())
			}
			r, err := soak.Run(cmd.Context(), c)
			progress.finish()
			switch {
			case r == nil:
				return err
			case asJSON:
				return errors.Join(err, json.NewEncoder(cmd.OutOrStdout()).Encode(r))
			default:
				return errors.Join(err, r.WriteTable(cmd.OutOrStdout()))
			}
		},
	}
	f := cmd.Flags()
	f.DurationVar(&c.Duration, "duration", soak.DefaultDuration, "how long")
	f.DurationVar(&c.Bound, "bound", soak.DefaultBound, "longest silence of a queue while nothing is broken")
	f.Uint64Var(&c.Seed, "seed", 1, "seed of the order of events")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.AddCommand(newPeer(soak.RunPeer))
	return cmd
}
