// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package aggregator

import (
	"context"

	"github.com/libra-ina/libra/internal/report/experiment"
)

func (h *run) cost(context.Context) error       { return experiment.ErrUnsupported }
func (h *run) throughput(context.Context) error { return experiment.ErrUnsupported }

func xdpSite(context.Context, int) (*site, error) { return nil, experiment.ErrUnsupported }
