// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// Every hint is read from its place before the packet, once, and only if there is room for all of
// them.
func TestHintsBeforeAPacket(t *testing.T) {
	u := newUMEM(t, UMEMConfig{Frames: 4, HugePages: HugePagesOff})
	native := binary.NativeEndian
	hints := native.AppendUint64(nil, 1<<40+7)
	hints = native.AppendUint32(hints, 0x01020304)
	hints = native.AppendUint32(hints, 0x0a0b0c0d)
	hints = binary.BigEndian.AppendUint16(hints, 0x88a8)
	hints = native.AppendUint16(hints, 0x1234)
	hints = native.AppendUint32(hints, 0x41584831)
	d := Desc{Frame: 2, Off: 24, Len: 60}
	around := u.mem[2*2048-8 : 2*2048+24+60]
	for i := range around {
		around[i] = 0xff
	}
	copy(u.Bytes(2), hints)

	if h, ok := u.RxHints(Desc{Frame: 2, Off: 23, Len: 61}); ok {
		t.Errorf("hints %+v of a packet without room for them", h)
	}
	if h, ok := u.RxHints(Desc{Frame: 2, Off: 25, Len: 59}); ok {
		t.Errorf("hints %+v that are a byte off", h)
	}
	if !bytes.Equal(u.Bytes(2)[:24], hints) {
		t.Error("hints that were not read are gone")
	}
	want := RxHints{Timestamp: 1<<40 + 7, Hash: 0x01020304, HashType: 0x0a0b0c0d, VLANProto: 0x88a8, VLANTCI: 0x1234}
	if h, ok := u.RxHints(d); h != want || !ok {
		t.Errorf("hints %+v, %v, want %+v", h, ok, want)
	}
	if h, ok := u.RxHints(d); ok {
		t.Errorf("hints %+v were read twice", h)
	}
	rest := bytes.Repeat([]byte{0xff}, 60)
	if !bytes.Equal(around[:8], rest[:8]) || !bytes.Equal(around[8:32], make([]byte, 24)) || !bytes.Equal(around[32:], rest) {
		t.Errorf("after reading the memory is %x", around)
	}
}

// A kernel that lacks the hint of VLAN tags has the others; one that lacks those has none.
func TestHintsAsKernelsHaveThem(t *testing.T) {
	const time, hash, vlan = "bpf_xdp_metadata_rx_timestamp", "bpf_xdp_metadata_rx_hash", "bpf_xdp_metadata_rx_vlan_tag"
	for name, c := range map[string]struct {
		lacks  []string
		calls  []int64
		want   error
		words  string
		broken error
	}{
		"Linux 6.8": {nil, []int64{100, 101, 102}, nil, "", btf.ErrNotFound},
		"Linux 6.3": {[]string{vlan}, []int64{100, 101}, nil, "", btf.ErrNotFound},
		"no hash":   {[]string{hash, vlan}, nil, errors.ErrUnsupported, "receive hints (" + hash + ") needs Linux 6.3", btf.ErrNotFound},
		"no time":   {[]string{time, hash, vlan}, nil, errors.ErrUnsupported, "receive hints (" + time + ") needs Linux 6.3", btf.ErrNotFound},
		"broken":    {[]string{vlan}, nil, unix.EDOM, "afxdp: find " + vlan + ": ", unix.EDOM},
	} {
		ids := map[string]btf.TypeID{time: 100, hash: 101, vlan: 102}
		for _, l := range c.lacks {
			delete(ids, l)
		}
		insns, err := hintsProgram(func(name string) (btf.TypeID, error) {
			id, ok := ids[name]
			if !ok {
				return 0, c.broken
			}
			return id, nil
		})
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: error %v, want %v and %q", name, err, c.want, c.words)
		}
		var calls []int64
		for _, i := range insns {
			if i.OpCode.JumpOp() == asm.Call && i.Src == asm.PseudoKfuncCall {
				calls = append(calls, i.Constant)
			}
		}
		if !slices.Equal(calls, c.calls) {
			t.Errorf("%s: calls of %v, want %v", name, calls, c.calls)
		}
	}
	// The hints of this kernel.
	find, err := kernelFunctions()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := find("no_such_function"); !errors.Is(err, btf.ErrNotFound) {
		t.Errorf("no such function: %v", err)
	}
}
