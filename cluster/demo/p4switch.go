// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// p4Switch is bmv2's switch with a P4Runtime server.
const p4Switch = "simple_switch_grpc"

// placeHosts maps the nodes to the ports of a P4 switch.
func placeHosts(s *cluster.P4, nodes []*testbed.Node) {
	s.Hosts = make(map[string]uint32)
	for i, n := range nodes {
		port := uint32(i + 1)
		s.Ports = append(s.Ports, port)
		s.Hosts[n.MAC.String()] = port
	}
}

// findP4Switch returns the path of bmv2.
func findP4Switch() (string, error) {
	path, err := exec.LookPath(p4Switch)
	if err != nil {
		return "", fmt.Errorf("plane p4: %w: it is part of bmv2 (docs/p4.md says how to get it)", err)
	}
	return path, nil
}

// startP4Switch starts a switch without a program, and waits until it is reachable.
func (r *run) startP4Switch(ctx context.Context) (stop func() error, err error) {
	path, err := findP4Switch()
	if err != nil {
		return nil, err
	}
	target := r.config.Switch.P4.Runtime
	group := proc.NewGroup(ctx, proc.Config{Stderr: r.options.Logs})
	child, err := group.Start(proc.Spec{
		Name: p4Switch, Cmd: testbed.SimpleSwitch(path, target, r.bed.ports), Start: r.bed.startOn(-1), Service: true,
	})
	if err != nil {
		return nil, errors.Join(err, group.Stop())
	}
	limit := time.After(startLimit)
	for {
		conn, err := net.Dial("unix", strings.TrimPrefix(target, "unix:"))
		if err == nil {
			return group.Stop, conn.Close()
		}
		select {
		case <-child.Done():
			return nil, group.Stop()
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), group.Stop())
		case <-limit:
			return nil, errors.Join(fmt.Errorf("%s does not listen after %v: %w", p4Switch, startLimit, err), group.Stop())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
