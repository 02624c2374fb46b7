// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestWindowLastsUntilSomethingMoves(t *testing.T) {
	n := 0
	read := func() (int, error) { n++; return n / 4, nil } // 0, 0, 0, 1
	moved := func(before, after int) bool { return after > before }
	before, after, err := Window(t.Context(), time.Millisecond, read, moved)
	if err != nil || before != 0 || after != 1 || n != 4 {
		t.Errorf("from %d to %d in %d readings, %v", before, after, n, err)
	}
	broken := errors.New("broken")
	if _, _, err := Window(t.Context(), time.Millisecond, func() (int, error) { return 0, broken }, moved); !errors.Is(err, broken) {
		t.Errorf("a counter that cannot be read: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Window(ctx, time.Hour, func() (int, error) { return 0, nil }, moved); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
