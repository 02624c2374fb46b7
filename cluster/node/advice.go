// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
)

// advise checks a data plane's counters until ctx ends, and warns once, with the remedy, if a
// sender's checksums are incomplete.
func advise(ctx context.Context, p aggregator.Plane, log *slog.Logger, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c, err := p.Counters()
		switch {
		case errors.Is(err, aggregator.ErrClosed):
			return
		case err == nil && c.PartialChecksum > 0:
			log.Warn("a sender leaves UDP checksums to a network card that its frames do not pass, and they are dropped: "+
				"switch the offload off at the sender, `ethtool -K INTERFACE tx off`", "partial_checksum", c.PartialChecksum)
			return
		}
	}
}

// AdviseStaleness warns if asynchronous workers may together lack more rows' gradients than the
// data has rows: then weights are older than an epoch, and training learns less than one process.
func AdviseStaleness(log *slog.Logger, c *cluster.Config, workers, rows int) {
	together := workers * c.Model.Batch
	if c.Job.Sync || c.Job.Staleness*together <= rows {
		return
	}
	if fits := rows / together; fits > 0 {
		log.Warn("weights may lack the gradients of more rows than the data has, which costs accuracy: "+
			"lower job.staleness (--staleness)", "rows", rows, "staleness", c.Job.Staleness, "workers", workers,
			"batch", c.Model.Batch, "at_most", fits)
		return
	}
	log.Warn("weights may lack the gradients of more rows than the data has, which costs accuracy: "+
		"train with job.sync (--sync), or with smaller mini-batches or fewer workers", "rows", rows,
		"staleness", c.Job.Staleness, "workers", workers, "batch", c.Model.Batch)
}
