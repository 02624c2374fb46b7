// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// moveNIC moves a network card into a new namespace until the test ends, with an address and the
// link up. Closing the namespace returns it.
func moveNIC(t *testing.T, name, address string) (*testbed.Namespace, [6]byte) {
	t.Helper()
	ns, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			if _, err := netlink.LinkByName(name); err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s does not come back", name)
			}
		}
	})
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNsFd(l, ns.FD()); err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, a)
	})
	if err == nil {
		err = ns.SetUp(name, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ns, [6]byte(l.Attrs().HardwareAddr)
}

// A worker on sockets in zero-copy mode pushes over a wire to the XDP aggregator on another network
// card: the sums are exact. The addresses are resolved by ARP in the meantime.
func TestZeroCopyPush(t *testing.T) {
	a, b, ok := strings.Cut(os.Getenv("AFXDP_TEST_NICS"), ",")
	if !ok {
		t.Skip("needs two interfaces whose drivers have zero-copy, named in AFXDP_TEST_NICS; make kernel-test emulates such")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // emulated machines are slow
	defer cancel()
	local, at := netip.MustParseAddr("10.77.0.1"), wire.Endpoint{IP: netip.MustParseAddr("10.77.0.2"), Port: wire.DefaultPort}
	host, mac := moveNIC(t, a, local.String()+"/24")
	far, farMAC := moveNIC(t, b, at.IP.String()+"/24")

	plane, err := bpf.Open(bpf.Options{Address: at.IP})
	if err != nil {
		t.Fatal(err)
	}
	defer plane.Close()
	if err := far.Do(func() error { return plane.Attach(b, afxdp.AttachNative) }); err != nil {
		t.Fatal(err)
	}
	keys := make([]uint64, 300)
	for i := range keys {
		keys[i] = uint64(i) + 1000
	}
	hot, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	job := aggregator.JobConfig{ID: 5, Epoch: 1, Slots: hot.Slots(), Exp: aggregator.DefaultExp(aggregator.Exact)}
	if err := plane.AddJob(job); err != nil {
		t.Fatal(err)
	}
	if err := plane.AddSender(job.ID, aggregator.SenderConfig{ID: 1, Epoch: 1, MAC: mac, IP: local}); err != nil {
		t.Fatal(err)
	}
	var worker *transport.Worker
	err = host.Do(func() error {
		// By name, because the drivers of QEMU's cards are not safe in that mode.
		l, err := link.OpenAFXDP(link.AFXDPConfig{Interface: a, Local: netip.AddrPortFrom(local, wire.DefaultPort), ZeroCopy: true})
		if err != nil {
			return err
		}
		if !link.ZeroCopy(l) {
			t.Error("the link is in copy mode")
		}
		worker, err = transport.NewWorker(ctx, transport.WorkerConfig{
			Link: l, Job: job.ID, Sender: 1, AggregatorEpoch: 1, HotSet: hot, Exp: job.Exp, Aggregator: at,
			Server: wire.Endpoint{IP: at.IP, MAC: farMAC, Port: wire.DefaultPort + 1}, // for cold rows, of which there are none
		})
		if err != nil {
			return errors.Join(err, l.Close())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()

	// Eighths in float32 add up without rounding.
	want := map[uint64]float32{}
	rng := rand.New(rand.NewPCG(1, 2))
	rows, grads := make([]uint64, 500), make([]float32, 500)
	for range 40 {
		for i := range rows {
			rows[i], grads[i] = keys[rng.IntN(len(keys))], float32(rng.IntN(201)-100)/8
			want[rows[i]] += grads[i]
		}
		ticket, err := worker.Push(ctx, rows, grads)
		if err == nil {
			err = ticket.Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	bank, err := plane.Swap(job.ID)
	if err != nil {
		t.Fatal(err)
	}
	got := map[uint64]float32{}
	for rank, sum := range bank.Slots {
		if rank < len(keys) {
			got[hot.Key(uint32(rank))] = job.Float32(sum)
		}
	}
	if err := plane.Clear(bank); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sums (-pushed +held):\n%.1000s", diff)
	}
}
