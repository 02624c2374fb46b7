// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package engine

import (
	"context"

	"github.com/libra-ina/libra/bench/harness"
)

// Run returns [harness.ErrUnsupported].
func Run(context.Context, Config) (*Report, error) { return nil, harness.ErrUnsupported }

// RunInterface returns [harness.ErrUnsupported].
func RunInterface(context.Context, InterfaceConfig) (*Report, error) {
	return nil, harness.ErrUnsupported
}

// RunChild returns [harness.ErrUnsupported].
func RunChild([]string) error { return harness.ErrUnsupported }
