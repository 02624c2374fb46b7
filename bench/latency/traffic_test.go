// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/link/capture"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// frameAt is a frame of a worker, or the answer to one, whose payload has a length.
func frameAt(t testing.TB, at time.Duration, typ wire.Type, worker uint16, length int) link.TappedFrame {
	t.Helper()
	ip := netip.MustParseAddr("10.0.0.1")
	e, err := wire.NewEnvelope(wire.Endpoint{IP: ip, Port: 7000}, wire.Endpoint{IP: ip, Port: 7001})
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, e.Len()+length)
	wire.Header{Type: typ, Job: 1, Sender: worker, Seq: 1}.Put(frame[e.Len():])
	e.Seal(frame)
	return link.TappedFrame{Time: time.Unix(1_700_000_000, 0).Add(at), Data: frame, Len: len(frame)}
}

func captureOf(t testing.TB, frames ...link.TappedFrame) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := capture.NewWriter(&file, capture.Source{Process: "ps", Address: netip.MustParseAddrPort("10.0.0.1:7000")})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if err := w.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(0); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// A capture shows the sizes of answers, the times between each worker's requests, and how many
// workers are active in a millisecond. Frames of other programs are left out.
func TestTrafficOfACapture(t *testing.T) {
	const us = time.Microsecond
	other := frameAt(t, 30*us, wire.TypePull, 1, wire.PullLen(1))
	other.Data[len(other.Data)-wire.PullLen(1)] ^= 0xff
	arp := link.TappedFrame{Time: other.Time, Data: make([]byte, 60), Len: 60}
	path := filepath.Join(t.TempDir(), "ps.pcapng")
	file := captureOf(t,
		frameAt(t, 0, wire.TypePull, 1, wire.PullLen(3)), frameAt(t, 10*us, wire.TypePull, 1, wire.PullLen(3)),
		frameAt(t, 15*us, wire.TypeRows, 1, 900), other, arp,
		frameAt(t, 20*us, wire.TypeCold, 2, wire.ColdLen(1, 1)), frameAt(t, 25*us, wire.TypeAck, 2, 20),
		frameAt(t, 2500*us, wire.TypeHot, 2, wire.HotLen(1)), frameAt(t, 2600*us, wire.TypeRows, 1, 300))
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readTraffic(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Gaps.Count != 2 || got.Gaps.Max != 2480*us || got.Gaps.P50 > 11*us || got.Gaps.P50 < 9*us {
		t.Errorf("gaps %+v, want 10 µs and 2.48 ms", got.Gaps)
	}
	want := Traffic{File: path, Requests: 4, Answers: []Sizes{
		{Of: "push", Count: 1, P10: 20, P50: 20, P90: 20, P99: 20, Max: 20},
		{Of: "pull", Count: 2, P10: 300, P50: 300, P90: 900, P99: 900, Max: 900}},
		Workers: Sizes{Of: "workers in 1 ms", Count: 2, P10: 1, P50: 1, P90: 2, P99: 2, Max: 2}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Sizes{}), cmpopts.IgnoreFields(Traffic{}, "Gaps", "gaps"),
		cmpopts.IgnoreUnexported(telemetry.Distribution{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r := Report{Traffic: []Traffic{got}}
	if c := r.trafficCharts(); len(c) != 2 || len(c[0].Series) != 2 || len(c[1].Series) != 1 || len(c[1].Series[0].Points) == 0 {
		t.Errorf("charts %+v", c)
	}
}

// What is no capture of Libra's frames is refused by name, with a remedy.
func TestTrafficRefusesOtherFiles(t *testing.T) {
	file := captureOf(t, frameAt(t, 0, wire.TypePull, 1, wire.PullLen(3)), frameAt(t, 1, wire.TypePull, 1, wire.PullLen(3)))
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"empty": {nil, "no capture in the format pcapng"}, "text": {[]byte("step,loss\n1,2\n3,4\n5,6\n7,8\n9,10\n"), "editcap"},
		"without workers": {captureOf(t), "libra capture"},
	} {
		path := filepath.Join(t.TempDir(), "ps.pcapng")
		if err := os.WriteFile(path, c.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readTraffic(path); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "ps.pcapng")
	for cut := 1; cut < 200; cut++ {
		if err := os.WriteFile(path, file[:len(file)-cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readTraffic(path); err == nil && !got.Cut && cut != tail(file) {
			t.Errorf("a capture without its last %d bytes is whole", cut)
		}
	}
	if _, err := readTraffic(t.TempDir()); err == nil {
		t.Error("a folder is a capture")
	}
}

// A damaged length in the middle of a capture, of either order of bytes, ends what is read, and
// that is said.
func TestTrafficOfADamagedFile(t *testing.T) {
	for _, order := range []interface {
		binary.ByteOrder
		binary.AppendByteOrder
	}{binary.LittleEndian, binary.BigEndian} {
		words := func(b []byte, all ...uint32) []byte {
			for _, word := range all {
				b = order.AppendUint32(b, word)
			}
			return b
		}
		file := words(nil, 0x0a0d0d0a, 28, 0x1a2b3c4d)
		file = words(order.AppendUint16(order.AppendUint16(file, 1), 0), 1<<32-1, 1<<32-1, 28)
		file = words(order.AppendUint16(order.AppendUint16(words(file, 1, 20), 1), 0), 0, 20) // of Ethernet
		var second int
		for n := range 3 {
			if n == 1 {
				second = len(file)
			}
			frame := frameAt(t, 0, wire.TypePull, 1, wire.PullLen(3)).Data
			padded := append(bytes.Clone(frame), make([]byte, -len(frame)&3)...)
			length := uint32(32 + len(padded))
			file = words(file, 6, length, 0, 0, uint32(n), uint32(len(frame)), uint32(len(frame)))
			file = words(append(file, padded...), length)
		}
		path := filepath.Join(t.TempDir(), "ps.pcapng")
		for _, damaged := range []bool{false, true} {
			if damaged {
				order.PutUint32(file[second+4:], 0x70000020)
			}
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := readTraffic(path); err != nil || got.Cut != damaged || (got.Requests == 3) == damaged {
				t.Errorf("%v, damaged %v: cut %v, %d requests, %v", order, damaged, got.Cut, got.Requests, err)
			}
		}
	}
}

// tail is the length of the last block.
func tail(file []byte) int { return int(binary.LittleEndian.Uint32(file[len(file)-4:])) }

// FuzzCapture feeds damaged captures, which must give an error or counts, never a panic.
func FuzzCapture(f *testing.F) {
	file := captureOf(f, frameAt(f, 0, wire.TypePull, 1, wire.PullLen(3)), frameAt(f, 1, wire.TypeRows, 1, 100))
	f.Add(file)
	for i := 0; i < len(file); i += 7 {
		damaged := bytes.Clone(file)
		damaged[i] ^= 0xff
		f.Add(damaged)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		c := newTally()
		if _, err := c.addFile(bytes.NewReader(file)); err == nil && c.gaps.Distribution().Count() > c.requests {
			t.Errorf("%d times between %d requests", c.gaps.Distribution().Count(), c.requests)
		}
	})
}
