// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// wrappings are the texts with which gRPC introduces the reason why a connection broke or could not
// be made.
var wrappings = []string{
	"closing transport due to: ", `connection error: desc = "`, "transport: ", "Error while dialing: ",
	"error reading server preface: ", "error reading from server: ",
}

// bare are reasons that a call on a broken connection gets without such an introduction.
var bare = []string{"keepalive ping failed to receive ACK within timeout", "transport is closing"}

// BrokenBy finds in an error message why a connection broke, or reports that the message is a
// service's. gRPC gives nothing but the text.
func BrokenBy(message string) (reason string, ok bool) {
	reason = message
	for i := 0; i < len(wrappings); i++ {
		if rest, found := strings.CutPrefix(reason, wrappings[i]); found {
			reason, ok, i = rest, true, -1
		}
	}
	reason, _, _ = strings.Cut(reason, `"`)
	ok = ok || slices.Contains(bare, reason)
	if reason == io.EOF.Error() {
		reason = "the other side closed it"
	}
	return reason, ok
}

// CallError turns a gRPC error into the service's error text, prefixed with the role and the call,
// or into why the service could not be reached.
func CallError(role, call string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s ended %s", role, call)
	}
	if s, ok := status.FromError(err); ok {
		switch {
		case s.Code() == codes.Canceled:
			return fmt.Errorf("%s: %s: %w", role, call, context.Canceled)
		case s.Code() == codes.Unimplemented && strings.HasPrefix(s.Message(), "unknown service"):
			return fmt.Errorf("%s: %s: a different service answers there: is the address right?", role, call)
		}
		if reason, broken := BrokenBy(s.Message()); broken {
			return brokenOff{fmt.Errorf("%s: %s: the connection broke (%s): is the %s running, and can this host reach it?",
				role, call, reason, role)}
		}
		// The service knows the deadline, and may answer before the caller's clock reaches it.
		if s.Code() == codes.DeadlineExceeded {
			return fmt.Errorf("%s: %s: %w", role, call, context.DeadlineExceeded)
		}
		told := fmt.Errorf("%s: %s: %s", role, call, s.Message())
		if s.Code() == codes.NotFound {
			return notFound{told}
		}
		return told
	}
	return fmt.Errorf("%s: %s: %w", role, call, err)
}

// ErrBroken is in the error of a call whose connection broke, or could not be made.
var ErrBroken = errors.New("the connection broke")

// brokenOff is ErrBroken in its own words.
type brokenOff struct{ error }

func (brokenOff) Is(target error) bool { return target == ErrBroken }

// ErrNotFound is in the error of a call about a job that the service does not know.
var ErrNotFound = errors.New("the service does not know the job")

// notFound is ErrNotFound in the service's words.
type notFound struct{ error }

func (notFound) Is(target error) bool { return target == ErrNotFound }
