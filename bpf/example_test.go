// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// A switch with two ports sums the gradients of a worker behind one of them. Here, switch and hosts
// are network namespaces, so the example needs root; in your own program leave out the bed, name
// your interfaces, and make calls directly instead of in Do.
func Example() {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	bed, err := testbed.New(ctx, testbed.Config{Hosts: 2})
	check(err)
	defer bed.Close()
	host := bed.Host(0)
	at := wire.Endpoint{IP: bed.Switch().IP, Port: wire.DefaultPort}

	a, err := bpf.Open(bpf.Options{Address: at.IP})
	check(err) // bpf.ErrPermission names the capability that is missing
	defer a.Close()
	check(bed.Switch().Do(func() error {
		for _, h := range bed.Hosts() {
			if err := a.Attach(h.PortName, afxdp.AttachAuto); err != nil {
				return err // afxdp.ErrProgramAttached: another program stays attached
			}
		}
		return nil
	}))
	hot, err := packer.NewHotSet(1, []uint64{7, 9}, nil, packer.Meta{})
	check(err)
	job := aggregator.JobConfig{ID: 5, Epoch: 1, Slots: hot.Slots(), Exp: aggregator.DefaultExp(aggregator.Exact)}
	check(a.AddJob(job))
	check(a.AddSender(job.ID, aggregator.SenderConfig{ID: 1, Epoch: 1, MAC: [6]byte(host.MAC), IP: host.IP}))

	var worker *transport.Worker
	check(host.Do(func() error {
		l, err := link.OpenAFXDP(link.AFXDPConfig{Interface: host.Interface, Local: netip.AddrPortFrom(host.IP, wire.DefaultPort)})
		if err != nil {
			return err
		}
		worker, err = transport.NewWorker(ctx, transport.WorkerConfig{
			Link: l, Job: job.ID, Sender: 1, AggregatorEpoch: 1, HotSet: hot, Exp: job.Exp, Aggregator: at,
			Server: wire.Endpoint{IP: bed.Host(1).IP, Port: wire.DefaultPort}, // for cold rows, of which there are none
		})
		return err
	}))
	defer worker.Close()
	ticket, err := worker.Push(ctx, []uint64{9, 7, 9}, []float32{0.5, 4, 0.25})
	check(err)
	check(ticket.Wait(ctx))

	bank, err := a.Swap(job.ID)
	check(err)
	for rank, sum := range bank.Slots {
		fmt.Println("row", hot.Key(uint32(rank)), "sum", job.Float32(sum))
	}
	check(a.Clear(bank))
	// Output:
	// row 7 sum 4
	// row 9 sum 0.75
}
