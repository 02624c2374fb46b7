// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// A gradient arrives twice and is added once; then the job's sums are harvested.
func Example() {
	model, err := aggregator.NewModel(aggregator.Config{Address: netip.MustParseAddr("192.0.2.1")})
	if err != nil {
		panic(err)
	}
	defer model.Close()
	job := aggregator.JobConfig{ID: 5, Epoch: 1, Slots: 100, Exp: aggregator.DefaultExp(aggregator.Exact)}
	worker := aggregator.SenderConfig{ID: 1, Epoch: 1, IP: netip.MustParseAddr("192.0.2.2")}
	if err := model.AddJob(job); err != nil {
		panic(err)
	}
	if err := model.AddSender(job.ID, worker); err != nil {
		panic(err)
	}

	payload := make([]byte, wire.HotLen(1))
	wire.Header{
		Type: wire.TypeHot, Flags: wire.FlagDense, Job: job.ID, Sender: worker.ID, Epoch: worker.Epoch, Seq: wire.FirstSeq,
	}.Put(payload)
	stripe := wire.StripeAt(payload, 0)
	stripe.SetMask(1)
	stripe.SetSlot(0, 42) // the rank
	stripe.SetValue(0, 0.5)
	reply := make([]byte, aggregator.MaxReplyPayload)
	for range 2 {
		verdict, n := model.ProcessPayload(netip.AddrPortFrom(worker.IP, wire.DefaultPort), payload, reply)
		answer, err := wire.ParseHeader(reply[:n])
		if err != nil {
			panic(err)
		}
		fmt.Println(verdict, answer.Type, answer.Seq)
	}

	bank, err := model.Swap(job.ID)
	if err != nil {
		panic(err)
	}
	fmt.Println("rank 42:", job.Float32(bank.Slots[42]), "from", bank.Frames, "frame")
	if err := model.Clear(bank); err != nil {
		panic(err)
	}
	// Output:
	// reply ACK 1
	// reply ACK 1
	// rank 42: 0.5 from 1 frame
}
