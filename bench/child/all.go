// SPDX-License-Identifier: Apache-2.0

package child

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/internal/linux/proc"
)

// StartAll starts children and waits until all are ready. If one fails, the others run until the
// group is stopped.
func StartAll(ctx context.Context, g *proc.Group, specs []Spec) (all []*Child, err error) {
	for _, s := range specs {
		c, err := Start(g, s)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	for _, c := range all {
		if err := c.Ready(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// AskAll sends a request to all children at the same time and returns the values of their answers,
// in the order of the children. If one fails, the others are not waited for.
func AskAll[T any](ctx context.Context, all []*Child, op string) ([]T, error) {
	asking, ctx := errgroup.WithContext(ctx)
	values := make([]T, len(all))
	for i, c := range all {
		asking.Go(func() error { return c.Ask(ctx, op, nil, &values[i]) })
	}
	return values, asking.Wait()
}

// StopAll stops children at the same time; see [Child.Stop].
func StopAll(ctx context.Context, all []*Child) error {
	var stopping errgroup.Group
	for _, c := range all {
		stopping.Go(func() error { return c.Stop(ctx) })
	}
	return stopping.Wait()
}
