// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/wire"
)

// A worker puts two pairs into a frame, and a receiver decodes it.
func Example() {
	worker := wire.Endpoint{MAC: [6]byte{2, 0, 0, 0, 0, 2}, IP: netip.MustParseAddr("192.0.2.2"), Port: wire.DefaultPort}
	aggregator := wire.Endpoint{MAC: [6]byte{2, 0, 0, 0, 0, 1}, IP: netip.MustParseAddr("192.0.2.1"), Port: wire.DefaultPort}
	e, err := wire.NewEnvelope(worker, aggregator)
	if err != nil {
		panic(err)
	}
	frame := make([]byte, e.Len()+wire.HotLen(1))
	payload := e.Payload(frame, wire.HotLen(1))
	wire.Header{Type: wire.TypeHot, Job: 5, Sender: 1, Epoch: 3, Seq: wire.FirstSeq}.Put(payload)
	stripe := wire.StripeAt(payload, 0)
	for lane, gradient := range []float32{0.5, -0.25} {
		stripe.SetMask(stripe.Mask() | 1<<lane)
		stripe.SetSlot(lane, 7)
		stripe.SetValue(lane, gradient)
	}
	e.Seal(frame) // lengths and checksums

	p, err := wire.ParseFrame(frame, wire.DefaultPort)
	if err != nil {
		panic(err)
	}
	h, err := wire.ParseHeader(p.Payload)
	if err != nil {
		panic(err)
	}
	s := wire.StripeAt(p.Payload, 0)
	fmt.Println(len(frame), "bytes:", h.Type, "of job", h.Job, "from", p.Src.IP)
	fmt.Println(s.Value(0), s.Value(1), "for slot", s.Slot(0))

	frame[60]++
	_, err = wire.ParseFrame(frame, wire.DefaultPort)
	fmt.Println(errors.Is(err, wire.ErrChecksum))
	// Output:
	// 190 bytes: HOT of job 5 from 192.0.2.2
	// 0.5 -0.25 for slot 7
	// true
}
