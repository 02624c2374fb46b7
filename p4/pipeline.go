package p4

import (
	"context"
	"fmt"

	rt "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// running returns the cookie of the program that the switch runs, 0 if it runs none.
// A program that another controller has loaded may have none either.
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

// load makes the switch run the program from its initial state. It refuses to
// replace another program, unless replace is set.
func (c *client) load(p *Program, replace bool) error {
	cookie, loaded, err := c.running()
	if err != nil {
		return err
	}
	if loaded && cookie != p.cookie && !replace {
		return fmt.Errorf("p4: %w (cookie %#x, ours is %#x) at %s: if it may be replaced, say so (--p4-replace)",
			ErrOtherProgram, cookie, p.cookie, c.target)
	}
	ctx, cancel := context.WithTimeout(c.ctx, 6*patience)
	defer cancel()
	_, err = c.rpc.SetForwardingPipelineConfig(ctx, &rt.SetForwardingPipelineConfigRequest{
		DeviceId: c.device, ElectionId: c.electionID(),
		Action: rt.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		Config: &rt.ForwardingPipelineConfig{
			P4Info: p.info, P4DeviceConfig: p.device,
			Cookie: &rt.ForwardingPipelineConfig_Cookie{Cookie: p.cookie},
		},
	})
	return c.explain("load the program", err)
}

// unchanged returns an error if the switch does not run the program any more.
func (c *client) unchanged(p *Program) error {
	cookie, loaded, err := c.running()
	switch {
	case err != nil:
		return err
	case !loaded:
		return fmt.Errorf("p4: %w at %s: it has started anew; start Libra_s anew, and the jobs' servers with it", ErrStateLost, c.target)
	case cookie != p.cookie:
		return fmt.Errorf("p4: %w (cookie %#x) at %s since the connection broke: stop the other controller, and start Libra_s anew",
			ErrOtherProgram, cookie, c.target)
	}
	return nil
}
