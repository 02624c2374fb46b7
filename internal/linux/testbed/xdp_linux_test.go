// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Verdicts of <linux/bpf.h>.
const (
	xdpPass = 2
	xdpTX   = 3
)

// attachXDP attaches a program to an interface in a node's namespace, in native mode.
func attachXDP(t *testing.T, n *Node, index int, program asm.Instructions) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: program})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	err = n.Do(func() error {
		attached, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { _ = attached.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func pass() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}
}

// swapAddresses swaps the two hardware addresses of every frame and ends with instructions that set
// the verdict in R0.
func swapAddresses(verdict ...asm.Instruction) asm.Instructions {
	program := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
		asm.Mov.Imm(asm.R0, xdpPass),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 14),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
		asm.LoadMem(asm.R5, asm.R2, 0, asm.Word),
		asm.LoadMem(asm.R6, asm.R2, 4, asm.Half),
		asm.LoadMem(asm.R7, asm.R2, 6, asm.Word),
		asm.LoadMem(asm.R8, asm.R2, 10, asm.Half),
		asm.StoreMem(asm.R2, 0, asm.R7, asm.Word),
		asm.StoreMem(asm.R2, 4, asm.R8, asm.Half),
		asm.StoreMem(asm.R2, 6, asm.R5, asm.Word),
		asm.StoreMem(asm.R2, 10, asm.R6, asm.Half),
	}
	return append(append(program, verdict...), asm.Return().WithSymbol("out"))
}

// Native XDP programs can be attached to both ends of a cable with several queues, NAPI stays
// threaded, and frames that a port sends back reach the host.
func TestNativeXDPAnswersAHost(t *testing.T) {
	tests := []struct {
		name    string
		verdict func(port int) asm.Instructions
		hostXDP bool
	}{
		{
			name:    "XDP_TX to a host with a program",
			verdict: func(int) asm.Instructions { return asm.Instructions{asm.Mov.Imm(asm.R0, xdpTX)} },
			hostXDP: true,
		},
		{
			name: "XDP_REDIRECT to a host without one",
			verdict: func(port int) asm.Instructions {
				return asm.Instructions{
					asm.Mov.Imm(asm.R1, int32(port)),
					asm.Mov.Imm(asm.R2, 0),
					asm.FnRedirect.Call(),
				}
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bed := newBed(t, Config{Queues: 2, ThreadedNAPI: true, StaticARP: true})
			host := bed.Host(0)
			attachXDP(t, bed.Switch(), host.PortIndex, swapAddresses(test.verdict(host.PortIndex)...))
			if test.hostXDP {
				attachXDP(t, host, host.Index, pass())
			}
			err := bed.Switch().Do(func() error {
				threaded, err := readSysfs(host.PortName, "threaded")
				if threaded != "1" {
					t.Errorf("threaded is %q with an XDP program, want 1", threaded)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			expectEcho(t, bed)
		})
	}
}

// expectEcho sends a datagram from host 0 to host 1 and expects its frame back
// with the hardware addresses swapped.
func expectEcho(t *testing.T, bed *Bed) {
	t.Helper()
	host := bed.Host(0)
	sniffer := listenPacket(t, host, host.Interface)
	conn := listenUDP(t, host)
	payload := []byte("there and back")
	if _, err := conn.WriteToUDPAddrPort(payload, addrPort(listenUDP(t, bed.Host(1)))); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"sent", "returned"} {
		frame := make([]byte, 1<<16)
		n, _, err := unix.Recvfrom(sniffer, frame, 0)
		if err != nil {
			t.Fatalf("%s frame: %v", want, err)
		}
		frame = frame[:n]
		dst, src := bed.Host(1).MAC, host.MAC
		if want == "returned" {
			dst, src = src, dst
		}
		if !bytes.Equal(frame[:6], dst) || !bytes.Equal(frame[6:12], src) || !bytes.HasSuffix(frame, payload) {
			t.Errorf("%s frame is % x, want it for %s from %s", want, frame, dst, src)
		}
	}
}
