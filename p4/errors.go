package p4

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors of the connection to a switch. What is returned wraps one of them.
var (
	// ErrUnreachable means that the switch does not answer. The call has changed
	// nothing that a repetition of it would not change again.
	ErrUnreachable = errors.New("the switch does not answer")
	// ErrNotPrimary means that another controller with a higher election ID has the
	// switch.
	ErrNotPrimary = errors.New("another controller is the switch's primary")
	// ErrOtherProgram means that the switch runs a program that is not this one.
	ErrOtherProgram = errors.New("the switch runs another program")
	// ErrFull means that a table of the switch has no room.
	ErrFull = errors.New("the switch's table is full")
	// ErrStateLost means that the switch has started anew: all its jobs are gone.
	ErrStateLost = errors.New("the switch has lost its jobs")
)

// explain turns the error of an RPC into one that tells what to do.
func (c *client) explain(what string, err error) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return fmt.Errorf("p4: %s: %w at %s: check that it runs and that --p4runtime names its P4Runtime address: %w",
			what, ErrUnreachable, c.target, err)
	case codes.PermissionDenied:
		return fmt.Errorf("p4: %s: %w at %s: stop the other controller, or take a higher election ID than %d: %w",
			what, ErrNotPrimary, c.target, c.election, err)
	case codes.ResourceExhausted:
		return fmt.Errorf("p4: %s: %w: remove a job, or compile the program with more room (program/sizes.p4): %w", what, ErrFull, err)
	}
	return fmt.Errorf("p4: %s: %w", what, err)
}
