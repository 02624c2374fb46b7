//go:build linux

package bpf_test

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
)

// A switch with two ports sums the gradients of a worker. It needs root and the two
// interfaces, so it is compiled and not run here.
func Example() {
	a, err := bpf.Open(bpf.Options{Address: netip.MustParseAddr("192.0.2.1")})
	if err != nil {
		panic(err) // bpf.ErrPermission names the capability that is missing
	}
	defer a.Close()
	for _, port := range []string{"eth0", "eth1"} {
		if err := a.Attach(port, afxdp.AttachAuto); err != nil {
			panic(err) // afxdp.ErrProgramAttached: another's program stays
		}
	}
	job := aggregator.JobConfig{ID: 5, Epoch: 1, Slots: 100, Exp: aggregator.DefaultExp(aggregator.Exact)}
	if err := a.AddJob(job); err != nil {
		panic(err)
	}
	worker := aggregator.SenderConfig{ID: 1, Epoch: 1, MAC: [6]byte{2, 0, 0, 0, 0, 2}, IP: netip.MustParseAddr("192.0.2.2")}
	if err := a.AddSender(job.ID, worker); err != nil {
		panic(err)
	}
	// While the worker sends frames:
	bank, err := a.Swap(job.ID)
	if err != nil {
		panic(err)
	}
	fmt.Println(job.Float32(bank.Slots[42]), "from", bank.Frames, "frames")
	if err := a.Clear(bank); err != nil {
		panic(err)
	}
}
