// SPDX-License-Identifier: Apache-2.0

package control

import "strings"

// Departure is how a worker leaves a job.
type Departure struct {
	// Unused means that the worker has sent nothing: it leaves as if it had not joined, and is not
	// lost.
	Unused bool
	// Reason, if not empty, is why the worker leaves before it has finished. The other workers and
	// the servers' logs show it.
	Reason string
	// Diverged means that its gradients became too large. The servers keep the checkpoints that they
	// have, because later weights would diverge again.
	Diverged bool
	// Back means that the worker may come back: it is neither lost nor finished. The servers wait
	// for it without limit, like for a worker that has not joined yet, and the others wait at their
	// next barrier.
	Back bool
}

// maxReason is the length of the longest reason.
const maxReason = 500

// reason returns the reason as a message may have it.
func (d Departure) reason() string {
	if len(d.Reason) <= maxReason {
		return strings.ToValidUTF8(d.Reason, "?")
	}
	return strings.ToValidUTF8(d.Reason[:maxReason], "") + "..."
}
