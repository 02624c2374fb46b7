// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"

	"github.com/libra-ina/libra/cluster"
)

// Lines are the options of the lines of a bed's hosts.
type Lines struct {
	// LineRate is what a worker's line carries in each direction, in Mb/s; 0: all that it can.
	LineRate float64
}

// checkLines reports an option that is invalid, or impossible with the backend.
func (o Lines) checkLines(backend string) error {
	switch {
	case !(o.LineRate == 0 || o.LineRate >= 0.01 && o.LineRate <= 100_000):
		return fmt.Errorf("--line-rate %v: it must be from 0.01 to 100,000 Mb/s, or 0 for lines without a limit", o.LineRate)
	case o.LineRate != 0 && backend == cluster.BackendUDP:
		return fmt.Errorf("--line-rate %v: with --backend udp all hosts are this machine, and there are no lines; use afxdp, as root",
			o.LineRate)
	}
	return nil
}

// limit applies the options to the hosts of the workers.
func (o Lines) limit(b *bed, servers int) error {
	if o.LineRate == 0 {
		return nil
	}
	for _, h := range b.net.Hosts()[servers:] {
		if err := h.LimitRate(o.LineRate * 1e6); err != nil {
			return err
		}
	}
	return nil
}
