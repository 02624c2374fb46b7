// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	rt "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// loadMask is the part of a cookie that distinguishes loads of the same program: after another
// load, our jobs are gone.
const loadMask = 1<<32 - 1

// running returns the cookie of the switch's program, 0 if it runs none. A program that another
// controller has loaded may have no cookie either.
func (c *client) running() (cookie uint64, loaded bool, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	r, err := c.rpc.GetForwardingPipelineConfig(ctx, &rt.GetForwardingPipelineConfigRequest{
		DeviceId: c.device, ResponseType: rt.GetForwardingPipelineConfigRequest_P4INFO_AND_COOKIE,
	})
	switch status.Code(err) {
	case codes.OK:
	case codes.FailedPrecondition, codes.NotFound:
		return 0, false, nil
	default:
		return 0, false, c.explain("read the program", err)
	}
	info := r.GetConfig().GetP4Info()
	return r.GetConfig().GetCookie().GetCookie(), len(info.GetTables())+len(info.GetActions()) > 0, nil
}

// load makes the switch run the program from its initial state. It refuses to replace another
// program unless replace is set.
func (c *client) load(p *Program, replace bool) error {
	cookie, loaded, err := c.running()
	if err != nil {
		return err
	}
	if loaded && cookie&^loadMask != p.cookie && !replace {
		return fmt.Errorf("p4: %w (cookie %#x, ours is %#x) at %s: if it may be replaced, say so (--p4-replace)",
			ErrOtherProgram, cookie, p.cookie, c.target)
	}
	c.loaded.Store(p.cookie | uint64(rand.Uint32()))
	ctx, cancel := context.WithTimeout(c.ctx, 6*patience)
	defer cancel()
	_, err = c.rpc.SetForwardingPipelineConfig(ctx, &rt.SetForwardingPipelineConfigRequest{
		DeviceId: c.device, ElectionId: c.electionID(),
		Action: rt.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		Config: &rt.ForwardingPipelineConfig{
			P4Info: p.info, P4DeviceConfig: p.device,
			Cookie: &rt.ForwardingPipelineConfig_Cookie{Cookie: c.loaded.Load()},
		},
	})
	if err = c.explain("load the program", err); err != nil && !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrNotPrimary) {
		err = fmt.Errorf("%w: check that the switch at %s has device %d (--p4-device), and that the program is compiled for it (--p4-config)", err, c.target, c.device)
	}
	return err
}

// unchanged returns an error if the switch no longer runs the program.
func (c *client) unchanged(p *Program) error {
	cookie, loaded, err := c.running()
	switch {
	case err != nil:
		return err
	case !loaded:
		return fmt.Errorf("p4: %w at %s: it has restarted; restart the switch daemon and the jobs' servers", ErrStateLost, c.target)
	case cookie&^loadMask == p.cookie && cookie != c.loaded.Load():
		return fmt.Errorf("p4: %w at %s: another switch daemon has loaded the program since the connection broke: "+
			"stop that one, and restart this one and the jobs' servers", ErrStateLost, c.target)
	case cookie&^loadMask != p.cookie:
		return fmt.Errorf("p4: %w (cookie %#x) at %s since the connection broke: "+
			"stop the other controller, and restart the switch daemon", ErrOtherProgram, cookie, c.target)
	}
	return nil
}
