// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// spreadOver makes the card select among the first n receive queues by a packet's hash (receive
// side scaling): the entries of its indirection table are the queues in turn.
func (t *Tuned) spreadOver(ifname string, n int) error {
	queues, _, err := QueueCounts(ifname)
	if err == nil && n > queues {
		return fmt.Errorf("%w: %s has %d receive queues in use, Tuning.Spread is %d", ErrNoQueue, ifname, queues, n)
	}
	before, err := getIndirection(ifname)
	if err == nil && len(before) == 0 {
		err = unix.EOPNOTSUPP
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return &FeatureError{Feature: "Tuning.Spread on " + ifname,
			Needs: "a card that spreads packets over its queues by a table", Remedy: "leave it out", Err: err}
	}
	if err != nil {
		return explainTune(ifname, "read the indirection table", err)
	}
	want := inTurn(len(before), n)
	if slices.Equal(want, before) {
		return nil
	}
	if err := setIndirection(ifname, want); err != nil {
		return explainTune(ifname, "spread packets over queues", err)
	}
	t.undo = append(t.undo, func(ifname string) error {
		now, err := getIndirection(ifname)
		if err != nil || !slices.Equal(now, want) {
			return err // another process's choice stays
		}
		if queues > 0 && slices.Equal(before, inTurn(len(before), queues)) {
			before = nil // the driver's own table, which follows the number of queues
		}
		return setIndirection(ifname, before)
	})
	return nil
}

// inTurn returns a table of the first n queues.
func inTurn(size, n int) []uint32 {
	table := make([]uint32, size)
	for i := range table {
		table[i] = uint32(i % n)
	}
	return table
}
