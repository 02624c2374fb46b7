// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package codec

import (
	"context"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// zfp cannot be measured here.
type zfp struct{}

func openZFP(context.Context, []float32) (*zfp, *experiment.Unavailable, error) {
	return nil, &experiment.Unavailable{Baseline: ZFP, Reason: experiment.ErrUnsupported.Error()}, nil
}

func (*zfp) method(int) method { panic("codec: zfp was not opened") }

func (*zfp) close() error { return nil }
