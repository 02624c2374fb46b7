// SPDX-License-Identifier: Apache-2.0

package p4_test

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/p4"
	"github.com/libra-ina/libra/wire"
)

// A switch with P4Runtime sums a gradient, whose second copy is acknowledged and not added. The
// switch is bmv2's model, in this process; your own switch has a target such as
// "switch.example:9559".
func Example() {
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	target, ingress, stop := p4.StartSwitch()
	defer stop()

	at := wire.Endpoint{MAC: [6]byte{2, 0, 0, 0, 0, 1}, IP: netip.MustParseAddr("192.0.2.1"), Port: wire.DefaultPort}
	plane, err := p4.Open(p4.Options{Target: target, Address: at.IP, Ports: []uint32{1, 2}})
	check(err) // p4.ErrUnreachable, p4.ErrNotPrimary, p4.ErrOtherProgram
	defer plane.Close()
	job := aggregator.JobConfig{
		ID: 5, Epoch: 1, Slots: 100, Exp: aggregator.DefaultExp(aggregator.Exact), MaxStripes: 1, Layouts: aggregator.Aligned,
	}
	check(plane.AddJob(job))
	worker := wire.Endpoint{MAC: [6]byte{2, 0, 0, 0, 0, 2}, IP: netip.MustParseAddr("192.0.2.2"), Port: wire.DefaultPort}
	check(plane.AddSender(job.ID, aggregator.SenderConfig{ID: 1, Epoch: 1, MAC: worker.MAC, IP: worker.IP}))

	envelope, err := wire.NewEnvelope(worker, at)
	check(err)
	frame := make([]byte, envelope.Len()+wire.HotLen(1))
	payload := envelope.Payload(frame, wire.HotLen(1))
	wire.Header{Type: wire.TypeHot, Job: job.ID, Sender: 1, Epoch: 1, Seq: wire.FirstSeq}.Put(payload)
	stripe := wire.StripeAt(payload, 0)
	lane, slot := 42%wire.Lanes, 42/wire.Lanes
	stripe.SetMask(1 << lane)
	stripe.SetSlot(lane, uint16(slot))
	stripe.SetValue(lane, 0.5)
	envelope.Seal(frame)
	for range 2 {
		answer, err := wire.ParseFrame(ingress(1, frame), worker.Port)
		check(err)
		header, err := wire.ParseHeader(answer.Payload)
		check(err)
		fmt.Println(header.Type, header.Seq)
	}

	bank, err := plane.Swap(job.ID)
	check(err)
	fmt.Println("rank 42:", job.Float32(bank.Slots[42]), "from", bank.Frames, "frame")
	check(plane.Clear(bank))
	// Output:
	// ACK 1
	// ACK 1
	// rank 42: 0.5 from 1 frame
}
