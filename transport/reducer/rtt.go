// SPDX-License-Identifier: Apache-2.0

package reducer

import "time"

const (
	minTimeout = 250 * time.Microsecond
	maxTimeout = 16 * time.Millisecond
)

// estimator derives the time until a repetition from those that results took (RFC 6298). A result
// waits for the slowest worker, so this measures the workers as much as the network.
type estimator struct {
	srtt, rttvar time.Duration
	measured     bool
}

func (e *estimator) sample(took time.Duration) {
	if !e.measured {
		e.srtt, e.rttvar, e.measured = took, took/2, true
		return
	}
	late := took - e.srtt
	e.rttvar += (late.Abs() - e.rttvar) / 4
	e.srtt += late / 8
}

func (e *estimator) timeout() time.Duration {
	if !e.measured {
		return maxTimeout
	}
	return min(max(e.srtt+4*e.rttvar, minTimeout), maxTimeout)
}
