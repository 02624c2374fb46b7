// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"
	"testing/synctest"
)

// A server's reaction to a lost worker may take time: calls of the others do not wait for it.
func TestOthersDoNotWaitForALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		s := startServer(t, func(c *ParameterServerConfig) { c.Lost = func(uint16) { <-busy } })
		one, two := s.joined(t)
		left, done := make(chan error, 1), make(chan error, 1)
		go func() { left <- one.leave(t) }()
		synctest.Wait()
		go func() { done <- two.done(t) }()
		synctest.Wait()
		if len(left) == 0 || len(done) == 0 {
			t.Error("a worker waits for what follows the loss of another")
		}
		close(busy)
	})
}
