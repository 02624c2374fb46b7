// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	rt "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/p4/program"
)

// loadMask is the part of a cookie that distinguishes loads of the same program: after another
// load, our jobs are gone.
const loadMask = 1<<32 - 1

// cookieOf returns the cookie that identifies a program in a switch, by its upper half.
func cookieOf(p *program.Compiled) uint64 {
	// 0 would mean that there is no cookie.
	return binary.BigEndian.Uint64(p.Digest[:])&^loadMask | 1<<32
}

// runningCookie returns the cookie of the switch's program, 0 if it runs none. A program that
// another controller has loaded may have no cookie either.
func (c *client) runningCookie() (cookie uint64, loaded bool, err error) {
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
		return 0, false, c.explainError("read the program", err)
	}
	info := r.GetConfig().GetP4Info()
	return r.GetConfig().GetCookie().GetCookie(), len(info.GetTables())+len(info.GetActions()) > 0, nil
}

// loadProgram makes the switch run the program from its initial state. It refuses to replace
// another program unless replace is set.
func (c *client) loadProgram(p *program.Compiled, replace bool) error {
	cookie, loaded, err := c.runningCookie()
	if err != nil {
		return err
	}
	ours := cookieOf(p)
	if loaded && cookie&^loadMask != ours && !replace {
		return fmt.Errorf("p4: %w (cookie %#x, ours is %#x) at %s: if it may be replaced, say so (--p4-replace)",
			ErrOtherProgram, cookie, ours, c.target)
	}
	c.loaded.Store(ours | uint64(rand.Uint32()))
	ctx, cancel := context.WithTimeout(c.ctx, 6*patience)
	defer cancel()
	_, err = c.rpc.SetForwardingPipelineConfig(ctx, &rt.SetForwardingPipelineConfigRequest{
		DeviceId: c.device, ElectionId: c.electionID(),
		Action: rt.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		Config: &rt.ForwardingPipelineConfig{
			P4Info: p.Info, P4DeviceConfig: p.Device,
			Cookie: &rt.ForwardingPipelineConfig_Cookie{Cookie: c.loaded.Load()},
		},
	})
	if err = c.explainError("load the program", err); err != nil && !errors.Is(err, ErrUnreachable) &&
		!errors.Is(err, ErrNotPrimary) {
		err = fmt.Errorf("%w: check that the switch at %s has device %d (--p4-device), and that the program is compiled for it (--p4-config)", err, c.target, c.device)
	}
	return err
}

// requireUnchanged returns an error if the switch no longer runs the program.
func (c *client) requireUnchanged(p *program.Compiled) error {
	cookie, loaded, err := c.runningCookie()
	ours := cookieOf(p)
	switch {
	case err != nil:
		return err
	case !loaded:
		return fmt.Errorf("p4: %w at %s: it has restarted; restart the switch daemon and the jobs' servers", ErrStateLost,
			c.target)
	case cookie&^loadMask == ours && cookie != c.loaded.Load():
		return fmt.Errorf("p4: %w at %s: another switch daemon has loaded the program since the connection broke: "+
			"stop that one, and restart this one and the jobs' servers", ErrStateLost, c.target)
	case cookie&^loadMask != ours:
		return fmt.Errorf("p4: %w (cookie %#x) at %s since the connection broke: "+
			"stop the other controller, and restart the switch daemon", ErrOtherProgram, cookie, c.target)
	}
	return nil
}
