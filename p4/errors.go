// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
)

// condition is an error that also counts as one of package aggregator.
type condition struct {
	text string
	like error
}

func (c *condition) Error() string { return c.text }

// Is makes [errors.Is] find that error.
func (c *condition) Is(target error) bool { return target == c.like }

// Errors of the connection to a switch. Returned errors wrap one of them.
var (
	// ErrUnreachable means that the switch does not answer. The call may be repeated: any change
	// that it made is idempotent. It is an [aggregator.ErrBusy].
	ErrUnreachable error = &condition{"the switch does not answer", aggregator.ErrBusy}
	// ErrNotPrimary means that another controller with a higher election ID controls the switch. It
	// is an [aggregator.ErrClosed], as the next two are.
	ErrNotPrimary error = &condition{"another controller is the switch's primary", aggregator.ErrClosed}
	// ErrOtherProgram means that the switch runs a different program.
	ErrOtherProgram error = &condition{"the switch runs a different program", aggregator.ErrClosed}
	// ErrStateLost means that the switch has restarted: all its jobs are gone.
	ErrStateLost error = &condition{"the switch has lost its jobs", aggregator.ErrClosed}
	// ErrFull means that a table of the switch is full. It is an [aggregator.ErrTooManySlots].
	ErrFull error = &condition{"the switch's table is full", aggregator.ErrTooManySlots}
)

// explainError turns the error of an RPC into one with advice.
func (c *client) explainError(what string, err error) error {
	code := status.Code(err)
	if code == codes.OK {
		return nil
	}
	if c.ctx.Err() != nil { // the plane was closed meanwhile: the switch is not at fault
		return fmt.Errorf("p4: %s: %w", what, aggregator.ErrClosed)
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return fmt.Errorf("p4: %s: %w at %s: check that it runs and that --p4-runtime (switch.p4.runtime) names its P4Runtime address: %w",
			what, ErrUnreachable, c.target, err)
	case codes.PermissionDenied:
		return fmt.Errorf("p4: %s: %w at %s: stop the other controller, or take a higher election ID than %d (--p4-election): %w",
			what, ErrNotPrimary, c.target, c.election, err)
	case codes.ResourceExhausted:
		return fmt.Errorf("p4: %s: %w: remove a job, or name fewer hosts: %w", what, ErrFull, err)
	}
	return fmt.Errorf("p4: %s: %w", what, err)
}
