// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"slices"
)

// noServerError means that a worker of a job without a parameter server was to push a cold row, or
// to pull. Nothing of the push or pull was sent.
type noServerError struct {
	pull bool
	key  uint64 // of the first cold row of a push
}

func (e *noServerError) Error() string {
	if e.pull {
		return "transport: the job has no parameter server to pull from: its sums go to its owner"
	}
	return fmt.Sprintf("transport: key %d is not in the hot set, and the job has no parameter server, which takes other rows: "+
		"push rows of the hot set only", e.key)
}

func (e *noServerError) Unwrap() error { return errors.ErrUnsupported }

// ColdKey returns the key of the cold row, if it was a push.
func (e *noServerError) ColdKey() (key uint64, pushed bool) { return e.key, !e.pull }

// refuseCold refuses the batch that the packer has begun if it has cold rows.
func (w *Worker) refuseCold() error {
	if n, key := w.packer.Cold(); n > 0 {
		return &noServerError{key: key}
	}
	return nil
}

// refusePull ends the oldest pull.
func (w *Worker) refusePull(o *operation) {
	w.pulls = slices.Delete(w.pulls, 0, 1)
	o.sealed = true
	o.recordFailure(&noServerError{pull: true})
	o.refuseWhole()
	w.settleOperation(o)
}
