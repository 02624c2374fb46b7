// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"testing"
)

func TestRoundErrorSaysHowFar(t *testing.T) {
	for want, e := range map[string]*RoundError{
		"transport: reduce failed in round 9 of group 3: of 8 groups 1 are done, 2 are acknowledged and wait for other workers, 4 are not acknowledged, 5 not sent: why": {
			Parts: 8, Done: 1, Waiting: 2, Unacked: 4, Unsent: 5, Part: 3, Round: 9, Err: errors.New("why")},
		"transport: negotiation of the scale of iteration 9 failed; the worker's report is not acknowledged: why": {
			Scale: true, Unacked: 1, Round: 9, Err: errors.New("why")},
		"transport: negotiation of the scale of iteration 9 failed; the worker's report is acknowledged and waits for other workers: why": {
			Scale: true, Waiting: 1, Round: 9, Err: errors.New("why")},
	} {
		if e.Error() != want {
			t.Errorf("%q, want %q", e, want)
		}
	}
}
