// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
	"github.com/libra-ina/libra/wire/golden"
)

//go:generate go test -run ^TestGolden -update

var update = flag.Bool("update", false, "rewrite the golden frames in testdata")

const (
	goldenDir  = "testdata"
	goldenPcap = "testdata/golden.pcap"
)

// TestGoldenFilesAreCurrent compares the files with the current output of encoders and decoders.
func TestGoldenFilesAreCurrent(t *testing.T) {
	files := map[string][]byte{}
	var index []golden.Case
	for _, f := range goldenFrames() {
		files[f.name+".hex"] = annotate(f)
		index = append(index, describe(f))
	}
	text, err := json.MarshalIndent(index, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	files["index.json"] = append(text, '\n')
	files["golden.pcap"] = capture(t, 65536)
	for name, want := range files {
		path := filepath.Join(goldenDir, name)
		if *update {
			if err := os.WriteFile(path, want, 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v; `go generate ./wire` writes the golden frames", err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from what the package makes of the case: if the format is meant to change, run `go generate ./wire` (-file +package):\n%s",
				path, cmp.Diff(string(got), string(want)))
		}
	}
	left, err := filepath.Glob(goldenDir + "/*.hex")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if _, ok := files[filepath.Base(path)]; !ok {
			t.Errorf("%s belongs to no case; delete it", path)
		}
	}
}

// TestGoldenFilesDecode uses only the files, like another implementation.
func TestGoldenFilesDecode(t *testing.T) {
	for _, c := range loadGolden(t) {
		got := describe(goldenFrame{c.Name, c.About, c.Bytes})
		c.Bytes = nil
		if diff := cmp.Diff(c, got); diff != "" {
			t.Errorf("%s (-index +decoded):\n%s", c.Name, diff)
		}
	}
}

func loadGolden(tb testing.TB) []golden.Case {
	tb.Helper()
	cases, err := golden.Load(goldenDir)
	if err != nil {
		tb.Fatal(err)
	}
	return cases
}

// outcome names a decoder's error as the index does.
func outcome(err error) string {
	for name, target := range map[string]error{
		"ok": nil, "foreign": wire.ErrForeign, "truncated": wire.ErrTruncated,
		"checksum": wire.ErrChecksum, "version": wire.ErrVersion, "length": wire.ErrLength,
	} {
		if errors.Is(err, target) {
			return name
		}
	}
	return fmt.Sprintf("unexpected error: %v", err)
}

// describe decodes a frame into its index entry.
func describe(f goldenFrame) golden.Case {
	c := golden.Case{Name: f.name, About: f.about}
	p, err := wire.ParseFrame(f.bytes, wire.DefaultPort)
	c.Frame = outcome(err)
	if err != nil {
		return c
	}
	c.Src, c.Dst = describeEndpoint(p.Src), describeEndpoint(p.Dst)
	h, err := wire.ParseHeader(p.Payload)
	c.Payload = outcome(err)
	if c.Payload == "truncated" {
		return c
	}
	c.Header = &golden.Header{Type: h.Type.String(), Flags: h.FlagNames(), Job: h.Job, Sender: h.Sender, Epoch: h.Epoch, Seq: h.Seq}
	if err == nil {
		c.Payload = outcome(describeBody(&c, p.Payload, h))
	}
	return c
}

func describeEndpoint(e wire.Endpoint) *golden.Endpoint {
	return &golden.Endpoint{MAC: net.HardwareAddr(e.MAC[:]).String(), IP: e.IP.String(), Port: e.Port}
}

func describeBody(c *golden.Case, payload []byte, h wire.Header) error {
	stripes := 0
	var err error
	switch h.Type {
	case wire.TypeHot:
		stripes, err = wire.StripeCount(payload)
	case wire.TypeAck:
		stripes, err = wire.ParseAck(payload, h)
		if decided := wire.FlagSum | wire.FlagScale; err == nil && h.Flags&decided == decided {
			c.Scale, err = describeScale(payload)
		}
		if err == nil && h.Flags&wire.FlagCover != 0 {
			c.Cover = fmt.Sprintf("%016x", wire.Cover(payload, h))
		}
		if err == nil && h.Flags&(wire.FlagTaken|wire.FlagCover) == wire.FlagTaken {
			c.Taken, err = describeTaken(payload)
		}
	case wire.TypeScale:
		c.Scale, err = describeScale(payload)
	case wire.TypeTaken:
		c.Taken, err = describeTaken(payload)
	case wire.TypeCold, wire.TypePull, wire.TypeRows, wire.TypeFind, wire.TypeFound, wire.TypeColdAt:
		var r wire.Rows
		if h.Flags&wire.FlagCoded != 0 && (h.Type == wire.TypeCold || h.Type == wire.TypeColdAt) {
			c.Rows, err = describeCoded(payload, h.Type)
			break
		}
		if r, err = wire.ParseRows(payload, h.Type); err == nil {
			c.Rows = describeRows(r, h.Type)
		}
	case wire.TypeStep:
		var s wire.StepEnd
		if s, err = wire.ParseStep(payload); err == nil {
			c.Step = &golden.Step{Step: s.Step, HotSent: s.HotSent, HotAnswered: s.HotAnswered, First: s.First, Room: s.Room}
		}
	case wire.TypeSums:
		var s wire.StepSums
		if s, err = wire.ParseStepSums(payload); err == nil {
			c.Rows, c.Sums = describeSums(s), &golden.Sums{Step: s.Step, Rows: s.Rows, First: s.First, Width: s.Width}
		}
	case wire.TypeBlock:
		c.Block, err = describeBlock(payload)
	case wire.TypeError:
		var r wire.Refusal
		if r, err = wire.ParseRefusal(payload); err == nil {
			c.Refusal = &golden.Refusal{Code: uint16(r.Code), Text: r.Code.String(), Index: r.Index, Value: r.Value}
		}
	}
	for i := range stripes {
		s := wire.StripeAt(payload, i)
		d := golden.Stripe{Mask: fmt.Sprintf("%08x", s[:4]), Pairs: []string{}}
		for lane := range wire.Lanes {
			if s.Mask()>>lane&1 != 0 {
				d.Pairs = append(d.Pairs, fmt.Sprintf("%d %d %08x", lane, s.Slot(lane), s.Bits(lane)))
			}
		}
		c.Stripes = append(c.Stripes, d)
	}
	return err
}

func describeScale(payload []byte) (*golden.Scale, error) {
	r, err := wire.ParseScale(payload)
	if err != nil {
		return nil, err
	}
	return &golden.Scale{Iteration: r.Iteration, Exponent: r.Exponent}, nil
}

func describeTaken(payload []byte) (*golden.Taken, error) {
	r, err := wire.ParseTaken(payload)
	if err != nil {
		return nil, err
	}
	return &golden.Taken{First: r.First, Round: r.Round}, nil
}

func describeRows(r wire.Rows, t wire.Type) *golden.Rows {
	d := &golden.Rows{Count: r.Count, Dim: r.Dim}
	row := make([]float32, r.Dim)
	keys, numbers, floats := t.Body()
	if numbers {
		d.Numbering = fmt.Sprintf("%08x", r.Numbering)
	}
	for i := range r.Count {
		if keys {
			d.Keys = append(d.Keys, fmt.Sprintf("%016x", r.Key(i)))
		}
		if numbers {
			d.Numbers = append(d.Numbers, r.Number(i))
		}
		if floats {
			r.Row(i, row)
			d.Rows = append(d.Rows, hexFloats(row))
		}
	}
	return d
}

// goldenCodec is that of the frames with CODED.
var goldenCodec = func() codec.Codec {
	c, err := codec.New(codec.Config{Bound: 10})
	if err != nil {
		panic(err)
	}
	return c
}()

func describeCoded(payload []byte, t wire.Type) (*golden.Rows, error) {
	r, codes, err := wire.ParseCoded(payload, t)
	if err != nil {
		return nil, err
	}
	values := make([]float32, r.Count*r.Dim)
	if err := goldenCodec.Decode(values, codes); err != nil {
		return nil, wire.ErrLength
	}
	d := describeRows(r.WithFloats(values, make([]byte, 4*len(values))), t)
	d.Codes = hex.EncodeToString(codes)
	return d, nil
}

func describeSums(s wire.StepSums) *golden.Rows {
	d := &golden.Rows{Count: s.Count, Dim: s.Dim}
	keys, sums := make([]uint64, s.Count), make([]float32, s.Count*s.Dim)
	s.Copy(keys, sums)
	for i, key := range keys {
		d.Keys = append(d.Keys, fmt.Sprintf("%016x", key))
		d.Rows = append(d.Rows, hexFloats(sums[i*s.Dim:][:s.Dim]))
	}
	return d
}

func describeBlock(payload []byte) (*golden.Block, error) {
	b, body, err := wire.ParseBlock(payload)
	if err != nil {
		return nil, err
	}
	d := &golden.Block{Operation: b.Operation, First: b.First, Count: b.Count, Step: b.Step, Bound: b.Bound, Scale: b.Scale}
	values := make([]float32, b.Count)
	if b.Bound == 0 {
		wire.Floats(values, body)
	} else if len(body) > 0 {
		c, err := codec.New(codec.Config{Bound: int(b.Bound), Scale: int(b.Scale)})
		if err != nil {
			return nil, err
		}
		if err := c.Decode(values, body); err != nil {
			return nil, wire.ErrLength
		}
		d.Codes = hex.EncodeToString(body)
	}
	d.Values = hexFloats(values)
	return d, nil
}

// annotate writes a frame as hexadecimal text with the names of its parts.
func annotate(f goldenFrame) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# %s\n", f.about)
	rest := f.bytes
	take := func(n int, what string) []byte {
		part := rest[:min(n, len(rest))]
		rest = rest[len(part):]
		if len(part) > 0 {
			fmt.Fprintf(&out, "# %s\n", what)
		}
		for line := range slices.Chunk(part, 16) {
			fmt.Fprintf(&out, "% x\n", line)
		}
		return part
	}
	take(12, "destination and source MAC")
	kind := take(2, "EtherType")
	for bytes.Equal(kind, []byte{0x81, 0}) {
		take(2, "802.1Q tag")
		kind = take(2, "EtherType")
	}
	switch {
	case bytes.Equal(kind, []byte{0x08, 0x00}):
		take(20, "IPv4")
	case bytes.Equal(kind, []byte{0x86, 0xdd}):
		take(40, "IPv6")
	}
	take(8, "UDP")
	h := take(wire.HeaderLen, "Libra header: version and type, flags, job, sender, epoch, sequence number")
	if len(h) == wire.HeaderLen {
		annotateBody(wire.Type(h[0]&15), wire.Flags(h[1]), func() int { return len(rest) }, take)
	}
	take(len(rest), "rest")
	return out.Bytes()
}

func annotateBody(t wire.Type, flags wire.Flags, left func() int, take func(int, string) []byte) {
	values := "values"
	if _, _, floats := t.Body(); floats && flags&wire.FlagCoded != 0 {
		values = "codes"
	} else if flags&wire.FlagScale != 0 {
		t = wire.TypeScale
	} else if t == wire.TypeAck && flags&(wire.FlagTaken|wire.FlagCover) == wire.FlagTaken {
		t = wire.TypeTaken
	}
	switch t {
	case wire.TypeTaken:
		take(4, "first slot, zero")
		take(4, "round")
	case wire.TypeScale:
		take(4, "iteration")
		take(1, "exponent")
	case wire.TypeHot, wire.TypeAck:
		for i := 0; (t == wire.TypeHot || flags&wire.FlagSum != 0) && left() > 0; i++ {
			take(4, fmt.Sprintf("stripe %d: lane mask", i))
			take(4*wire.Lanes, "values")
			take(2*wire.Lanes, "slots")
		}
	case wire.TypeStep:
		take(8, "step")
		take(8, "hot frames: sent, answered")
		take(8, "first row, room")
	case wire.TypeSums:
		count := take(4, "count, dimension")
		take(16, "step, rows of the step, first row")
		take(8, "key of the first row")
		if width := take(1, "bytes of a key"); len(width) == 1 {
			take(int(count[1])*int(width[0]), "keys: what they are more than the first one")
		}
		take(left(), "values")
	case wire.TypeCold, wire.TypePull, wire.TypeRows, wire.TypeFind, wire.TypeFound, wire.TypeColdAt:
		head := take(4, "count, dimension")
		if len(head) == 4 {
			count := int(head[0])<<8 | int(head[1])
			keys, numbers, _ := t.Body()
			if keys {
				take(8*count, "keys")
			}
			if numbers {
				take(4, "numbering")
				take(4*count, "row numbers")
			}
		}
		take(left(), values)
	case wire.TypeBlock:
		take(8, "operation, first value")
		take(4, "count, step")
		take(4, "bound, scale, zero")
		take(left(), "values")
	case wire.TypeError:
		take(8, "code, index, value")
	}
}

// capture writes at most snap bytes of all golden frames as a packet capture.
func capture(t *testing.T, snap int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := pcapgo.NewWriter(&out)
	if err := w.WriteFileHeader(uint32(snap), layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i, f := range goldenFrames() {
		n := min(snap, len(f.bytes))
		info := gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(i)*1e6), CaptureLength: n, Length: len(f.bytes)}
		if err := w.WritePacket(info, f.bytes[:n]); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// hexFloats returns the bits of floats in hexadecimal.
func hexFloats(v []float32) string {
	var parts []string
	for _, x := range v {
		parts = append(parts, fmt.Sprintf("%08x", math.Float32bits(x)))
	}
	return strings.Join(parts, " ")
}

// TestGoldenFramesCoverTheFormat compares docs/wire.md's list of what the golden frames cover with
// the files.
func TestGoldenFramesCoverTheFormat(t *testing.T) {
	covered := map[string]bool{}
	for _, c := range loadGolden(t) {
		damaged := c.Frame != "ok" && c.Frame != "foreign" || c.Frame == "ok" && c.Payload != "ok"
		if damaged != strings.HasPrefix(c.Name, "broken-") || (c.Frame == "foreign") != strings.HasPrefix(c.Name, "foreign-") {
			t.Errorf("%s decodes as %s, %s", c.Name, c.Frame, c.Payload)
		}
		if c.Frame != "ok" || c.Payload != "ok" {
			continue
		}
		covered[c.Header.Type], covered[c.Header.Flags] = true, true
		for flag := range strings.SplitSeq(c.Header.Flags, "|") {
			covered[flag] = true
		}
		if c.Refusal != nil {
			covered[wire.Code(c.Refusal.Code).String()] = true
		}
		if c.Header.Type == wire.TypeHot.String() {
			dense := strings.Contains(c.Header.Flags, wire.FlagDense.String())
			covered[fmt.Sprintf("%d stripes, dense %v", len(c.Stripes), dense)] = true
		}
		p, err := wire.ParseFrame(c.Bytes, wire.DefaultPort)
		if err != nil {
			t.Fatal(err)
		}
		tagged := c.Bytes[12] == 0x81 && c.Bytes[13] == 0
		covered["VLAN"] = covered["VLAN"] || tagged
		covered["IPv6"] = covered["IPv6"] || p.Src.IP.Is6()
		headers := len(c.Bytes) - len(p.Payload)
		whole := map[[2]bool]int{{false, false}: 42, {true, false}: 46, {false, true}: 62, {true, true}: 66}[[2]bool{tagged, p.Src.IP.Is6()}]
		covered["padding"] = covered["padding"] || headers > whole
		if headers == whole && c.Bytes[headers-2] == 0xff && c.Bytes[headers-1] == 0xff {
			covered["UDP checksum of 0"] = true
		}
	}
	want := []string{"VLAN", "IPv6", "padding", "UDP checksum of 0", "CODED", "TAKEN|COVER", "ALL|TAKEN"}
	for kind := wire.TypeHot; kind <= wire.TypeTaken; kind++ {
		want = append(want, kind.String())
	}
	want = append(want, wire.TypeBlock.String())
	for bit := range 6 {
		want = append(want, wire.Flags(1<<bit).String())
	}
	for code := wire.CodeUnknownJob; code.String() != fmt.Sprintf("error code %d", code); code++ {
		want = append(want, code.String())
	}
	for _, n := range []int{1, 10} {
		for _, dense := range []bool{false, true} {
			want = append(want, fmt.Sprintf("%d stripes, dense %v", n, dense))
		}
	}
	for _, what := range want {
		if !covered[what] {
			t.Errorf("no golden frame has: %s", what)
		}
	}
}
