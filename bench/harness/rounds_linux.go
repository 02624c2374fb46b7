// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
)

// WithPlane serves the control service of a bed's switch for a data plane, and calls do with a
// group for the processes of a job. It returns what failed first.
func WithPlane(ctx context.Context, bed *testbed.Bed, plane aggregator.Plane, do func(*proc.Group) error) error {
	endControl, err := ServeControl(bed, plane)
	if err != nil {
		return err
	}
	defer endControl()
	group := proc.NewGroup(ctx, proc.Config{Grace: child.EndLimit})
	err = do(group)
	// The group knows what failed first, which explains the rest.
	if first := group.Stop(); first != nil {
		return first
	}
	return err
}

// JoinRounds joins a job with rounds as the worker of a number, from 0 on, of job.Workers; what
// describes the job. A place without a MAC address is on a link of UDP. The caller calls Leave.
func (p *HostConfig) JoinRounds(ctx context.Context, job aggregator.JobConfig, number int,
	what string) (*control.Rounds, error) {
	ids := make([]uint16, job.Workers)
	for i := range ids {
		ids[i] = uint16(i)
	}
	var mac []byte
	if p.Self.MAC != [6]byte{} {
		mac = p.Self.MAC[:]
	}
	return control.JoinRounds(ctx, control.RoundsConfig{
		Job: job, What: what, Workers: ids, Worker: uint16(number), From: netip.AddrPortFrom(p.Self.IP, p.Self.Port),
		MAC: mac, Aggregator: p.Control, Log: slog.New(slog.DiscardHandler),
	})
}

// StartReducing starts a worker that has joined by [HostConfig.JoinRounds], to add vectors of
// job.Slots values by its Reduce on the place's link. A job of fixed sums negotiates their scales.
func (p *HostConfig) StartReducing(ctx context.Context, rounds *control.Rounds, job aggregator.JobConfig,
	number int) (*transport.Worker, error) {
	keys := make([]uint64, job.Slots)
	for i := range keys {
		keys[i] = uint64(i)
	}
	hot, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	if err != nil {
		return nil, err
	}
	l, err := p.OpenLink()
	if err != nil {
		return nil, err
	}
	server := p.Aggregator // a worker needs one, and sends it nothing
	server.Port++
	w, err := transport.NewWorker(ctx, transport.WorkerConfig{
		Link: l, Job: job.ID, Sender: uint16(number), AggregatorEpoch: rounds.Epoch, HotSet: hot, Mode: job.Mode,
		Arithmetic: job.Arithmetic, Exp: job.Exp, Workers: job.Workers, Stripes: job.MaxStripes, Layout: packer.LaneAligned,
		Negotiate: job.Arithmetic == aggregator.Fixed, Aggregator: p.Aggregator, Server: server, Look: p.Look,
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return w, nil
}
