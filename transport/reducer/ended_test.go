// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"errors"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
)

// A worker that is not to wait any more gives up before it would sleep again, and says why.
func TestEnded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork[int32](t, small, aggregator.Config{})
		n.admit(t, small.Workers)
		began, why := time.Now(), errors.New("no longer wanted")
		cfg := n.config(0, small)
		cfg.Ended = func() error {
			if time.Since(began) >= time.Second {
				return why
			}
			return nil
		}
		r := open[int32](t, cfg)
		err := r.Wait(startOne(t, r, make([]int32, small.Width)), nil)
		if !errors.Is(err, why) || err.Error() != "reducer: operation 0 has no result: no longer wanted" {
			t.Error(err)
		}
		if took := time.Since(began); took < time.Second || took > time.Second+maxTimeout {
			t.Errorf("told after %v", took)
		}
		if again := r.Poll(); !errors.Is(again, why) {
			t.Errorf("and then: %v", again)
		}
		n.hosts[0].free = nil // nor does it wait for buffers
		r = open[int32](t, cfg)
		if _, err := r.Start(make([]int32, small.Width)); !errors.Is(err, why) {
			t.Error(err)
		}
	})
}
