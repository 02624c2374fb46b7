// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/libra-ina/libra/aggregator"
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
