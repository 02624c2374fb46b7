// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/wire"
)

var bothModes = []afxdp.AttachMode{afxdp.AttachNative, afxdp.AttachGeneric}

func TestAnswersOnInterface(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode.String(), func(t *testing.T) {
			inNetwork(t, 1, testbed.VethConfig{MTU: wire.MaxMTU}, func() {
				p := openPair(t)
				d := p.Device.(*device)
				// The program at the host's end also enables what a veth needs to receive from XDP.
				equipHost(t, "host0")
				if err := d.Attach("port0", mode); err != nil {
					t.Fatal(err)
				}
				if got, ok := d.Mode("port0"); !ok || got != mode {
					t.Errorf("mode is %v, %v; want %v", got, ok, mode)
				}
				host, port := openTap(t, "host0"), openTap(t, "port0")
				g := conformance.NewGenerator(11)
				reply := make([]byte, aggregator.MaxReply)
				for i := range 20 {
					frame := g.Valid(i%len(conformance.Jobs), i%conformance.Senders)
					v, n := p.Model.Process(frame, reply)
					if v.Action != aggregator.Reply {
						t.Fatalf("the model's verdict is %v", v)
					}
					host.send(t, frame)
					host.expect(t, reply[:n])
				}
				foreign := between(t, conformance.Host(0), wire.Endpoint{IP: conformance.Aggregator.IP, Port: 53})
				host.send(t, foreign)
				port.expect(t, foreign)
				for _, j := range conformance.Jobs {
					if err := p.Harvest(j.ID); err != nil {
						t.Error(err)
					}
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				if id := programOn(t, "port0"); id != 0 {
					t.Errorf("program %d is still on the interface", id)
				}
			})
		})
	}
}

func TestForwardsBetweenHosts(t *testing.T) {
	inNamespace(t, 2, func() {
		d := open(t)
		for i := range 2 {
			equipHost(t, fmt.Sprintf("host%d", i))
			if err := d.Attach(fmt.Sprintf("port%d", i), afxdp.AttachNative); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 2 {
			if err := d.AddRoute(conformance.Host(i).MAC, fmt.Sprintf("port%d", i)); err != nil {
				t.Fatal(err)
			}
		}
		host0, port0, host1 := openTap(t, "host0"), openTap(t, "port0"), openTap(t, "host1")
		frame := between(t, conformance.Host(0), conformance.Host(1))
		host0.send(t, frame)
		host1.expect(t, frame)
		if err := d.RemoveRoute(conformance.Host(1).MAC); err != nil {
			t.Fatal(err)
		}
		host0.send(t, frame)
		port0.expect(t, frame) // left to the kernel
		c, err := d.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if c.Forwarded != 1 {
			t.Errorf("%d frames forwarded, want 1", c.Forwarded)
		}
	})
}

func TestKeepsOtherProgram(t *testing.T) {
	inNamespace(t, 1, func() {
		first, second := open(t), open(t)
		if err := first.Attach("port0", afxdp.AttachNative); err != nil {
			t.Fatal(err)
		}
		id := programOn(t, "port0")
		for _, mode := range bothModes {
			err := second.Attach("port0", mode)
			if !errors.Is(err, afxdp.ErrProgramAttached) || !strings.Contains(err.Error(), "port0") ||
				!strings.Contains(err.Error(), fmt.Sprint(id)) {
				t.Errorf("%v: error %v, want ErrProgramAttached with interface and program %d", mode, err, id)
			}
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
		if got := programOn(t, "port0"); got != id {
			t.Errorf("program %d is on the interface, want %d", got, id)
		}
		if err := first.Detach("port0"); err != nil {
			t.Error(err)
		}
		if got := programOn(t, "port0"); got != 0 {
			t.Errorf("program %d is on the interface after Detach", got)
		}
		if err := first.Attach("port0", afxdp.AttachAuto); err != nil {
			t.Errorf("attach again: %v", err)
		}
	})
}
