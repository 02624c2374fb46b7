// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// plane is a data plane, and what the switch daemon needs besides managing jobs.
type plane struct {
	aggregator.Plane
	// reach passes the hosts of a job's servers to the data plane; nil if it does not need them.
	reach func(job uint16, servers [][6]byte)
	// jobMemory returns the bytes of the banks of a job of n slots; nil for the control service's
	// default.
	jobMemory func(n int) uint64
	// failed delivers the error that ends a data plane which can fail by itself; nil if it cannot.
	failed <-chan error
	// what describes the plane in the log.
	what string

	// slots and senders are the plane's capacity; 0 means the control service's default.
	slots, senders int
}

// slotLimit returns the number of slots of all jobs together: the configured one, or else the
// capacity.
func (p *plane) slotLimit(configured int) int { return cmp.Or(configured, p.slots) }

// checkMemory refuses more slots than a host has memory for, 0 if that is not known: jobs that fill
// them would end the daemon, and all other jobs with it.
func (p *plane) checkMemory(field string, slots int, memory uint64) error {
	need := p.jobMemory
	if need == nil {
		need = func(n int) uint64 { return 16 * uint64(n) }
	}
	if n := need(slots); memory > 0 && n > memory {
		return fmt.Errorf("%s.slots: %d slots take %d MiB, and this host has %d MiB: give the jobs fewer slots",
			field, slots, n>>20, memory>>20)
	}
	return nil
}

// RunSwitch runs the switch daemon and its data plane. It serves until ctx ends.
func RunSwitch(ctx context.Context, env Env) (err error) {
	c := env.Config
	security, err := access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return err
	}
	listener, err := env.Machine.listen(ctx, c.SwitchField()+".control", c.Switch.Control)
	if err != nil {
		return err
	}
	defer listener.Close()
	p, err := awaitInterface(ctx, env.Log, false, func() (plane, error) { return openPlane(env) })
	if err != nil {
		return err
	}
	if c.Switch.Slots > 0 {
		if err := p.checkMemory(c.SwitchField(), c.Switch.Slots, hostMemory()); err != nil {
			return errors.Join(err, p.Close())
		}
	}
	if env.Machine.Plane != nil {
		p.Plane = env.Machine.Plane(p.Plane)
	}
	defer func() { err = errors.Join(err, p.Close()) }()

	ctx, cancel := context.WithCancel(ctx) // stopServer cancels it
	server := access.NewServer(security, env.Machine.Server...)
	service := control.NewAggregator(ctx, control.AggregatorConfig{
		Plane:   p,
		Stripes: c.Switch.Stripes,
		Dense:   !c.Switch.LaneAligned,
		Slots:   p.slotLimit(c.Switch.Slots),
		Senders: p.senders,
		Reach:   p.reach,

		Dial: func(ctx context.Context, control netip.AddrPort) (*grpc.ClientConn, error) {
			return access.Dial(ctx, access.TheSwitch(), control, security, childLimit, env.Log, env.Machine.Client...)
		},
		Turn:      env.Machine.turn,
		JobMemory: p.jobMemory,
		Random:    env.Machine.Random,
		Log:       env.Log,
	})
	defer service.Close() // it uses the data plane until then
	pb.RegisterAggregatorServer(server, service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer stopServer(server, cancel)
	shown := env.showSwitch(security, service)
	defer shown.Close()

	env.Log.Info("switch serves", "data_plane", p.what, "address", c.Switch.Address, "port", c.Port,
		"control", listener.Addr())
	go advise(ctx, p, env.Log, time.Second)
	env.ready()
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.failed:
		return err
	case err := <-served:
		return fmt.Errorf("control service: %w", err)
	}
}

func openPlane(env Env) (plane, error) {
	switch env.Config.Switch.Plane {
	case cluster.PlaneModel:
		return openModelPlane(env)
	case cluster.PlaneP4:
		return openP4Plane(env.Config, env.Log)
	}
	return openXDPPlane(env.Config, env.Log)
}

// stopServer ends a control service. cancel ends the context of its streams, which notifies their
// peers; a peer that does not react is disconnected after a while. No call is in progress when it
// returns.
func stopServer(s *grpc.Server, cancel func()) {
	cancel()
	told := make(chan struct{})
	go func() {
		defer close(told)
		s.GracefulStop()
	}()
	select {
	case <-told:
	case <-time.After(farewell):
		s.Stop()
		<-told
	}
}

// childLimit is how long the daemon waits for that of another switch.
const childLimit = 5 * time.Second

// farewell is how long peers may take to see the end of a control service.
const farewell = time.Second
