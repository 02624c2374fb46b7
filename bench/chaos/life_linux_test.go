// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A life in which nothing happens any more ends, with an error that says what it waited for.
func TestWatchDogNamesTheStage(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	r := &running{cancel: cancel, news: make(chan struct{}), server: &process{}}
	r.enter("waits for step %d", 9)
	r.reached(7)
	r.mu.Lock()
	r.changed = time.Now().Add(-stageLimit)
	r.mu.Unlock()
	go r.watchDog(ctx)
	err := r.waitStep(ctx, 9)
	if err == nil || !strings.Contains(err.Error(), "step 7 is the last that was pushed, and it waits for step 9") {
		t.Error(err)
	}
}
