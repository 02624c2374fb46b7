// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
)

// The warning appears where gradients of more rows than there are may be missing, and not with the
// remedy that it names.
func TestAdviseStaleness(t *testing.T) {
	for name, c := range map[string]struct {
		sync                            bool
		staleness, workers, batch, rows int
		want                            string // "": no warning
	}{
		"fits":            {false, 8, 4, 64, 2048, ""},
		"does not":        {false, 8, 4, 64, 2047, "lower job.staleness (--staleness)\" rows=2047 staleness=8 workers=4 batch=64 at_most=7"},
		"the remedy":      {false, 7, 4, 64, 2047, ""},
		"few rows":        {false, 8, 4, 64, 255, "train with job.sync (--sync), or with smaller mini-batches or fewer workers\" rows=255"},
		"sync":            {true, 0, 4, 64, 255, ""},
		"smaller batches": {false, 1, 4, 63, 255, ""},
	} {
		var log strings.Builder
		config := &cluster.Config{Job: cluster.Job{Sync: c.sync, Staleness: c.staleness}, Model: cluster.Model{Batch: c.batch}}
		AdviseStaleness(slog.New(slog.NewTextHandler(&log, nil)), config, c.workers, c.rows)
		if !strings.Contains(log.String(), c.want) || (c.want == "") != (log.String() == "") {
			t.Errorf("%s: %q, want %q", name, log.String(), c.want)
		}
	}
}
