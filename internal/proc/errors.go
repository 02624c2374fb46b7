// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrStopped is returned by [Group.Start] and [Child.Ready] once the group was
// asked to stop.
var ErrStopped = errors.New("proc: group was stopped")

// ExitError is how a child ended that should not have ended that way.
type ExitError struct {
	Name   string   // of the child
	Code   int      // exit status, -1 where a signal ended the child
	Signal string   // name of the signal that ended it, "" where it exited
	When   string   // what the child was doing, e.g. "before it was ready"; may be empty
	Stderr []string // last lines of its standard error
}

// Error names the child, its status and its last words.
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
	Name  string        // of the child
	Grace time.Duration // how long it was given
}

// Error names the child and how long it was waited for.
func (e *KilledError) Error() string {
	return fmt.Sprintf("%s did not stop within %v and was killed", e.Name, e.Grace)
}
