// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventLimit bounds the wait for an event that a test expects, on a machine that is busy with
// other programs, too.
const eventLimit = 2 * time.Minute

// deadline limits a test that would hang.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
	t.Cleanup(cancel)
	return ctx
}
