// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrStopped is returned by [Group.Start] and [Child.Ready] after the group was stopped.
var ErrStopped = errors.New("proc: group was stopped")

// ExitError is the unexpected end of a child.
type ExitError struct {
	Name   string   // the child's
	Code   int      // exit status, -1 if a signal ended the child
	Signal string   // name of the signal that ended it, "" if it exited
	When   string   // what the child was doing, e.g. "before it was ready"; may be empty
	Stderr []string // last lines of its standard error
}

// Error names the child, its status and its last output.
func (e *ExitError) Error() string {
	var b strings.Builder
	if e.Signal != "" {
		fmt.Fprintf(&b, "%s was ended by a signal (%s)", e.Name, e.Signal)
	} else {
		fmt.Fprintf(&b, "%s exited with status %d", e.Name, e.Code)
	}
	if e.When != "" {
		b.WriteString(" " + e.When)
	}
	if len(e.Stderr) == 0 {
		b.WriteString("; it wrote nothing to standard error")
		return b.String()
	}
	b.WriteString("; last lines of its standard error:")
	for _, line := range e.Stderr {
		b.WriteString("\n  " + line)
	}
	return b.String()
}

// KilledError means that a child ignored the request to stop.
type KilledError struct {
	Name  string        // the child's
	Grace time.Duration // the time that it had to end
}

// Error names the child and the time that it had.
func (e *KilledError) Error() string {
	return fmt.Sprintf("%s did not stop within %v and was killed", e.Name, e.Grace)
}
