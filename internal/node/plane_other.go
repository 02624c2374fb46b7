//go:build !linux

package node

import (
	"errors"

	"github.com/libra-ina/libra/internal/cluster"
)

func openXDPPlane(*cluster.Config) (plane, error) {
	return plane{}, errors.New("the XDP aggregator needs Linux; use the udp backend")
}
