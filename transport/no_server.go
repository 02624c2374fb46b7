// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"slices"
)

// NoServerError means that a worker of a job without a parameter server was to push a cold row, or to
// pull. Nothing of the push or pull was sent.
type NoServerError struct {
	Pull bool
	Key  uint64 // of the first cold row of a push
}

func (e *NoServerError) Error() string {
	if e.Pull {
		return "transport: the job has no parameter server to pull from: its sums go to its owner"
	}
	return fmt.Sprintf("transport: key %d is not in the hot set, and the job has no parameter server, which takes other rows: "+
		"push rows of the hot set only", e.Key)
}

// refuseCold refuses the batch that the packer has begun if it has cold rows.
func (w *Worker) refuseCold() error {
	if n, key := w.packer.Cold(); n > 0 {
		return &NoServerError{Key: key}
	}
	return nil
}

// refusePull ends the oldest pull.
func (w *Worker) refusePull(o *operation) {
	w.pulls = slices.Delete(w.pulls, 0, 1)
	o.sealed = true
	o.recordFailure(&NoServerError{Pull: true})
	o.refuseWhole()
	w.settleOperation(o)
}
