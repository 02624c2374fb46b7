// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package node

import (
	"errors"
	"log/slog"

	"github.com/libra-ina/libra/internal/cluster"
)

func openXDPPlane(*cluster.Config, *slog.Logger) (plane, error) {
	return plane{}, errors.New("the XDP aggregator needs Linux; use the udp backend")
}
