// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"path/filepath"

	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/trace"
)

func (p *Programs) traceMeta() trace.Meta {
	return trace.Meta{Job: p.Job, Dim: p.Dim, Ranks: p.Workers, Sync: p.Sync}
}

// beginRecord begins the trace, if one is asked for.
func (p *Programs) beginRecord() (err error) {
	if p.Record == "" {
		return nil
	}
	if p.Record, err = filepath.Abs(p.Record); err == nil { // agents may run elsewhere
		err = trace.Begin(p.Record, p.traceMeta())
	}
	if err != nil {
		return fmt.Errorf("--record: %w", err)
	}
	return nil
}

// finishRecord completes the trace when all agents have ended. A client is of the rank whose
// process it is, or that has started it.
func (p *Programs) finishRecord(workers []*proc.Child) error {
	if p.Record == "" {
		return nil
	}
	ranks := map[int]int{}
	for rank, child := range workers {
		ranks[child.Pid()] = rank
	}
	return trace.Finish(p.Record, p.traceMeta(), func(processes []int) (int, bool) {
		for _, process := range processes {
			if rank, known := ranks[process]; known {
				return rank, true
			}
		}
		return 0, false
	})
}
