// SPDX-License-Identifier: Apache-2.0

package link

import (
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// Stamper is a [Link] whose packets may say when they arrived at the host; see [StampArrivals].
type Stamper interface {
	// StampArrivals makes Receive set Packet.Arrived of packets whose sequence number is drawn with a
	// sample ([telemetry.CheckSample]), if the kernel says it. It reports whether the link supports
	// this. It is called before the first Receive.
	StampArrivals(sample int) bool
}

// StampArrivals makes a link note when drawn packets arrive at the host, if the link, or one that
// it wraps, is a [Stamper] that can. It reports whether it does: otherwise packets do not say when
// they arrived.
func StampArrivals(l Link, sample int) bool {
	s, ok := find[Stamper](l)
	return ok && s.StampArrivals(sample)
}

// draws reports whether a payload's sequence number is drawn.
func draws(d telemetry.Draw, payload []byte) bool {
	return len(payload) >= wire.HeaderLen && d.Draws(wire.SeqOf(payload))
}
