package p4_test

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/p4"
)

// A switch is found over P4Runtime and sums the gradients of a worker. It needs the
// switch, so it is compiled and not run here.
func Example() {
	plane, err := p4.Open(p4.Options{
		Target: "switch.example:9559", Address: netip.MustParseAddr("192.0.2.1"), Ports: []uint32{1, 2},
	})
	if err != nil {
		panic(err) // p4.ErrUnreachable, p4.ErrNotPrimary, p4.ErrOtherProgram
	}
	defer plane.Close()
	job := aggregator.JobConfig{
		ID: 5, Epoch: 1, Slots: 100, Exp: aggregator.DefaultExp(aggregator.Exact), MaxStripes: 1, Layouts: aggregator.Aligned,
	}
	if err := plane.AddJob(job); err != nil {
		panic(err)
	}
	worker := aggregator.SenderConfig{ID: 1, Epoch: 1, MAC: [6]byte{2, 0, 0, 0, 0, 2}, IP: netip.MustParseAddr("192.0.2.2")}
	if err := plane.AddSender(job.ID, worker); err != nil {
		panic(err)
	}
	// While the worker sends frames:
	bank, err := plane.Swap(job.ID)
	if err != nil {
		panic(err)
	}
	fmt.Println(job.Float32(bank.Slots[42]), "from", bank.Frames, "frames")
	if err := plane.Clear(bank); err != nil {
		panic(err)
	}
}
