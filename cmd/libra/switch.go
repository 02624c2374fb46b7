// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/p4"
)

// SwitchLine is the line of 'libra switch --json' and 'libra agent --json', and the first line of
// 'libra ps --json' and 'libra worker --json'.
type SwitchLine struct {
	Ready *int `json:"ready,omitempty"` // process ID, once it serves
}

func newSwitch() *cobra.Command {
	var p process
	var standby int
	var name string
	cmd := &cobra.Command{
		Use:   "switch --config FILE",
		Short: "Run the switch daemon: jobs, and the aggregator that sums their gradients",
		Long: `Attaches the XDP aggregator to the switch's interfaces (backend afxdp), opens
its UDP socket (backend udp) or loads the P4 program into a switch (plane p4), and
serves jobs until it is interrupted. At its end it detaches what it attached, and
removes its jobs from a P4 switch, which keeps forwarding.

With --standby it is one of the file's standbys, at which a job goes on when it has
lost the switch. With --name it is one of the file's switches, for job.plan. The
flags --plane and --p4-* override the file's switch section.` + configHelp,
		Example: `  libra switch --config cluster.yaml
  libra switch --config cluster.yaml --standby 0
  libra switch --config cluster.yaml --name left
  libra switch --config cluster.yaml --plane p4 --p4-runtime 127.0.0.1:9559 --p4-ports 1,2,3`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := p.readEnv(cmd, cluster.ReadAny)
			if err != nil {
				return err
			}
			named := cmd.Flags().Changed("name")
			if named && cmd.Flags().Changed("standby") {
				return usagef(cmd, "--name and --standby: they are different machines, so leave one of them out")
			}
			if named {
				if env.Config, err = env.Config.ForSwitch(name); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("standby") {
				if env.Config, err = env.Config.ForStandby(standby); err != nil {
					return err
				}
			}
			return node.RunSwitch(cmd.Context(), env)
		},
	}
	p.addFlags(cmd)
	p.planeFlags(cmd)
	cmd.AddCommand(newSwitchDrain())
	cmd.Flags().IntVar(&standby, "standby", 0, "run the standby with this `index` in the cluster file, from 0")
	cmd.Flags().StringVar(&name, "name", "", "run the one of the cluster file's switches with this `name`")
	return cmd
}

// planeFlags adds flags for fields of the configuration's switch.
func (p *process) planeFlags(cmd *cobra.Command) {
	var s cluster.Switch
	f := cmd.Flags()
	f.StringVar(&s.Plane, "plane", "", "data plane: xdp, model or p4 (default the backend's: xdp or model)")
	f.StringVar(&s.P4.Runtime, "p4-runtime", "", "P4Runtime `address` of the P4 switch: host:port, or unix:path")
	f.StringVar(&s.P4.Info, "p4-info", "", "P4Info `file` of a compiled program (default: libra's own)")
	f.StringVar(&s.P4.Config, "p4-config", "", "device configuration `file` of the same program")
	f.Uint64Var(&s.P4.Device, "p4-device", 0, "number of the P4 switch at its address")
	f.Uint64Var(&s.P4.Election, "p4-election", 0,
		fmt.Sprintf("election ID: the controller with the highest is the switch's primary (default %d)", p4.DefaultElection))
	f.BoolVar(&s.P4.Replace, "p4-replace", false, "replace a different program that the P4 switch runs")
	choices(cmd, "plane", cluster.PlaneXDP, cluster.PlaneModel, cluster.PlaneP4)
	ports := f.UintSlice("p4-ports", nil, "`ports` of the P4 switch that have hosts behind them")
	set := func(flag string, apply func(c *cluster.Switch)) {
		p.changes = append(p.changes, func(c *cluster.Config) {
			if f.Changed(flag) {
				apply(&c.Switch)
			}
		})
	}
	set("plane", func(c *cluster.Switch) {
		if s.Plane == cluster.PlaneP4 && c.Plane != s.Plane { // it has other ports, and takes other frames
			c.Interfaces, c.XDPMode, c.ThreadedNAPI, c.Stripes, c.LaneAligned = nil, "", false, 1, true
			c.Silence = 0 // jobs end with it
		}
		c.Plane = s.Plane
	})
	set("p4-runtime", func(c *cluster.Switch) { c.P4.Runtime = s.P4.Runtime })
	set("p4-info", func(c *cluster.Switch) { c.P4.Info = s.P4.Info })
	set("p4-config", func(c *cluster.Switch) { c.P4.Config = s.P4.Config })
	set("p4-device", func(c *cluster.Switch) { c.P4.Device = s.P4.Device })
	set("p4-election", func(c *cluster.Switch) { c.P4.Election = s.P4.Election })
	set("p4-replace", func(c *cluster.Switch) { c.P4.Replace = s.P4.Replace })
	set("p4-ports", func(c *cluster.Switch) {
		c.P4.Ports = nil
		for _, port := range *ports {
			c.P4.Ports = append(c.P4.Ports, uint32(min(port, math.MaxUint32)))
		}
	})
}
