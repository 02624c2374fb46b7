// SPDX-License-Identifier: Apache-2.0

package reducer

// Stats counts what has happened so far.
type Stats struct {
	Results uint64 // operations with a result
	Frames  uint64 // that had them: fewer, where Queue has put several operations into one
	Repeats uint64 // repetitions because a result was late
	Hurried uint64 // repetitions because a later operation had its result
	// Malformed and Stray payloads changed nothing: damaged ones, and those that answer nothing which
	// waits. Late copies of results are among the latter.
	Malformed, Stray uint64
}

// Stats returns the counters.
func (r *Reducer[T]) Stats() Stats { return r.stats }
