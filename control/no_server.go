// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// servers lists the control services of the job's parameter servers by index.
func (c *JoinConfig) servers() []netip.AddrPort {
	if c.NoServer {
		return nil
	}
	return append([]netip.AddrPort{c.Server}, c.MoreServers...)
}

// whileMissing calls f again while the aggregator does not have the job of a worker without a
// parameter server, up to the limit: its owner may be about to create it. Where there is a server,
// that has created the job before the worker asks.
func whileMissing[T any](ctx context.Context, cfg *JoinConfig, f func(context.Context) (T, error)) (T, error) {
	end := time.Now().Add(cfg.Limit)
	var delay pause
	for first := true; ; first = false {
		v, err := f(ctx)
		if !cfg.NoServer || status.Code(err) != codes.NotFound || time.Now().After(end) {
			return v, err
		}
		if first {
			cmp.Or(cfg.Log, slog.Default()).Info("waiting for the owner of the job", "job", cfg.Job, "at_most", cfg.Limit)
		}
		if err := delay.waitPause(ctx); err != nil {
			return v, err
		}
	}
}
