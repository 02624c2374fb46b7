// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket/pcapgo"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testSource(port uint16) Source {
	return Source{
		Process: "worker 1", PID: os.Getpid(), Backend: "udp", Rebuilt: true,
		Address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port),
	}
}

// read parses a capture with gopacket: section, interface, packets.
type readBack struct {
	comment string
	intf    pcapgo.NgInterface
	frames  []link.TappedFrame
}

func read(t *testing.T, r io.Reader) readBack {
	t.Helper()
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	options := packetOptions(t, raw)
	ng, err := pcapgo.NewNgReader(bytes.NewReader(raw), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	var got readBack
	for {
		data, ci, err := ng.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("packet %d: %v", len(got.frames), err)
		}
		f := link.TappedFrame{Time: ci.Timestamp, Data: data, Len: ci.Length}
		if len(options) == 0 {
			t.Fatalf("packet %d has no block", len(got.frames))
		}
		if flags := options[0][2]; len(flags) == 4 {
			f.Direction = link.Direction(binary.LittleEndian.Uint32(flags))
		}
		if count := options[0][4]; len(count) == 8 {
			f.Lost = binary.LittleEndian.Uint64(count)
		}
		options = options[1:]
		got.frames = append(got.frames, f)
	}
	got.comment = ng.SectionInfo().Comment
	if got.intf, err = ng.Interface(0); err != nil {
		t.Fatal(err)
	}
	return got
}

// packetOptions returns the options of each enhanced packet block, by code. It parses them by the
// draft, because gopacket leaves them out.
func packetOptions(t *testing.T, raw []byte) (all []map[uint16][]byte) {
	t.Helper()
	padded := func(n int) int { return (n + 3) &^ 3 }
	for len(raw) >= 12 {
		length := int(binary.LittleEndian.Uint32(raw[4:]))
		if length > len(raw) || length%4 != 0 || binary.LittleEndian.Uint32(raw[length-4:]) != uint32(length) {
			t.Fatalf("a block of %d bytes, with %d left", length, len(raw))
		}
		if binary.LittleEndian.Uint32(raw) == 6 {
			options := map[uint16][]byte{}
			rest := raw[28+padded(int(binary.LittleEndian.Uint32(raw[20:]))) : length-4]
			for len(rest) >= 4 && binary.LittleEndian.Uint16(rest) != 0 {
				n := int(binary.LittleEndian.Uint16(rest[2:]))
				options[binary.LittleEndian.Uint16(rest)] = rest[4 : 4+n]
				rest = rest[4+padded(n):]
			}
			if len(rest) != 4 || binary.LittleEndian.Uint32(rest) != 0 {
				t.Fatalf("options end with %x", rest)
			}
			all = append(all, options)
		}
		raw = raw[length:]
	}
	return all
}

// hotFrame returns a complete frame with one HOT stripe, from one port to another.
func hotFrame(t *testing.T, from, to uint16, seq uint32) []byte {
	t.Helper()
	ip := netip.MustParseAddr("127.0.0.1")
	e, err := wire.NewEnvelope(wire.Endpoint{IP: ip, Port: from}, wire.Endpoint{IP: ip, Port: to})
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.HotLen(1))
	wire.Header{Type: wire.TypeHot, Job: 1, Sender: 1, Seq: seq}.Put(frame[e.Len():])
	e.Seal(frame)
	return frame
}

func TestWriter(t *testing.T) {
	at := time.Unix(1_700_000_000, 123_456_789)
	whole, cut := hotFrame(t, 1, 2, 7), make([]byte, link.TapSnapLen)
	want := []link.TappedFrame{
		{Time: at, Direction: link.Outbound, Data: whole, Len: len(whole)},
		{Time: at.Add(1), Direction: link.Inbound, Data: whole[:61], Len: 61, Lost: 3},
		{Time: at.Add(time.Hour), Direction: link.Inbound, Data: cut, Len: 9000, Lost: 1 << 40},
	}
	var file bytes.Buffer
	src := testSource(20000)
	w, err := NewWriter(&file, src)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range want {
		if err := w.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(1<<40 + 5); err != nil {
		t.Fatal(err)
	}
	got := read(t, &file)
	for i := range got.frames {
		got.frames[i].Time = got.frames[i].Time.Local()
	}
	if diff := cmp.Diff(want, got.frames); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	s := got.intf.Statistics
	if s.PacketsDropped != 1<<40+5 || s.PacketsReceived != 1<<40+8 || s.StartTime.After(s.EndTime) || got.intf.SnapLength != link.TapSnapLen {
		t.Errorf("interface %+v", got.intf)
	}
	for _, part := range []string{"worker 1", "wire/libra.lua", "-o libra.port:20000", "built around"} {
		if !strings.Contains(got.comment, part) {
			t.Errorf("comment %q does not contain %q", got.comment, part)
		}
	}
	src = testSource(wire.DefaultPort)
	src.Rebuilt = false
	if c := src.comment(); strings.Contains(c, "libra.port") || strings.Contains(c, "built around") {
		t.Errorf("comment %q tells of another port or rebuilt headers", c)
	}
}

// TestWriterWireshark reads the writer's output with tshark.
func TestWriterWireshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed")
	}
	path := filepath.Join(t.TempDir(), "test.pcapng")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(file, testSource(20000))
	if err != nil {
		t.Fatal(err)
	}
	frame := hotFrame(t, 1, 20000, 7)
	f := link.TappedFrame{Time: time.Unix(1_700_000_000, 123_456_789), Direction: link.Outbound, Data: frame, Len: len(frame)}
	err = w.Write(f)
	f.Direction, f.Lost, f.Len, f.Data = link.Inbound, 5, 300, f.Data[:100]
	if err = errors.Join(err, w.Write(f), w.Close(6), file.Close()); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-X", "lua_script:../../wire/libra.lua", "-o", "libra.port:20000", "-r", path, "-T", "fields",
		"-e", "frame.time_epoch", "-e", "frame.packet_flags_direction", "-e", "frame.drop_count", "-e", "frame.len", "-e", "frame.cap_len",
		"-e", "frame.interface_name", "-e", "libra.seq").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := "1700000000.123456789\t0x00000002\t\t190\t190\t127.0.0.1:20000\t7\n" +
		"1700000000.123456789\t0x00000001\t5\t300\t100\t127.0.0.1:20000\t7\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Errorf("(-written +tshark):\n%s", diff)
	}
}

// failing fails after some bytes, like a full disk.
type failing struct{ room int }

var errFull = errors.New("no space left")

func (f *failing) Write(p []byte) (int, error) {
	if len(p) > f.room {
		return 0, errFull
	}
	f.room -= len(p)
	return len(p), nil
}

func TestWriterFails(t *testing.T) {
	for _, room := range []int{0, 100_000} {
		w, err := NewWriter(&failing{room}, testSource(1))
		for range 1000 {
			if err != nil {
				break
			}
			err = w.Write(link.TappedFrame{Data: make([]byte, 1400), Len: 1400, Direction: link.Inbound})
		}
		if !errors.Is(err, errFull) {
			t.Errorf("after %d bytes: %v", room, err)
		}
	}
}

func TestStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		var want []link.TappedFrame
		for range rapid.IntRange(0, 4).Draw(t, "frames") {
			n := rapid.IntRange(0, link.TapSnapLen).Draw(t, "length")
			f := link.TappedFrame{
				Time: time.Unix(0, rapid.Int64().Draw(t, "time")), Direction: link.Inbound, Data: make([]byte, n),
				Len: n + rapid.IntRange(0, 1<<20).Draw(t, "cut"), Lost: rapid.Uint64().Draw(t, "lost"),
			}
			want = append(want, f)
			if err := writeFrame(&b, f); err != nil {
				t.Fatal(err)
			}
		}
		if err := writeEnd(&b, 77); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, link.TapSnapLen)
		for i, w := range want {
			f, end, err := readRecord(&b, buf)
			if diff := cmp.Diff(w, f); diff != "" || end || err != nil {
				t.Fatalf("frame %d: end %v, %v\n%s", i, end, err, diff)
			}
		}
		if f, end, err := readRecord(&b, buf); !end || err != nil || f.Lost != 77 {
			t.Fatalf("end %v, %d lost, %v", end, f.Lost, err)
		}
		if _, _, err := readRecord(&b, buf); !errors.Is(err, io.EOF) {
			t.Fatalf("after the end: %v", err)
		}
	})
}

// FuzzReadRecord reads the output of any program.
func FuzzReadRecord(f *testing.F) {
	var b bytes.Buffer
	if err := writeFrame(&b, link.TappedFrame{Data: make([]byte, 60), Len: 60, Direction: link.Outbound}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:50])
	f.Add([]byte{kindEnd})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		buf := make([]byte, link.TapSnapLen)
		for {
			frame, end, err := readRecord(r, buf)
			if err != nil || end {
				return
			}
			if len(frame.Data) > frame.Len {
				t.Fatalf("%d bytes of a frame of %d", len(frame.Data), frame.Len)
			}
			var again bytes.Buffer
			if err := writeFrame(&again, frame); err != nil {
				t.Fatal(err)
			}
		}
	})
}
