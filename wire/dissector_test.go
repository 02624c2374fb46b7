// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/wire"
	"github.com/libra-ina/libra/wire/golden"
)

// tshark runs the dissector on a capture and returns the values of the fields, frame by frame.
func tshark(t *testing.T, capture string, options []string, fields ...string) []map[string]string {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed")
	}
	args := append([]string{"-X", "lua_script:libra.lua", "-r", capture, "-T", "fields", "-E", "occurrence=a", "-E", "aggregator=;"}, options...)
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || strings.Contains(stderr.String(), "Lua") {
		t.Fatalf("tshark: %v\n%s", err, stderr.String())
	}
	var frames []map[string]string
	for line := range strings.Lines(string(out)) {
		values := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		frame := map[string]string{}
		for i, f := range fields {
			frame[f] = values[i]
		}
		frames = append(frames, frame)
	}
	return frames
}

var dissectorFields = []string{
	"_ws.expert", "_ws.expert.message", "libra.version", "libra.type", "libra.flags", "libra.job", "libra.sender", "libra.epoch", "libra.seq",
	"libra.stripe.mask", "libra.stripe.page", "libra.pair.lane", "libra.pair.slot", "libra.pair.rank", "libra.pair.value", "libra.pair.integer",
	"libra.scale.iteration", "libra.scale.exponent", "libra.cover", "libra.taken.first", "libra.taken.round", "libra.takers",
	"libra.step", "libra.step.hot_sent", "libra.step.hot_answered", "libra.step.first", "libra.step.room", "libra.step.rows", "libra.step.width",
	"libra.count", "libra.dim", "libra.key", "libra.numbering", "libra.number", "libra.row.value", "libra.codes",
	"libra.block.operation", "libra.block.first", "libra.block.step", "libra.block.bound", "libra.block.scale",
	"libra.error.code", "libra.error.index", "libra.error.value",
}

// TestDissector compares Wireshark's fields of the golden frames with the index.
func TestDissector(t *testing.T) {
	cases := loadGolden(t)
	frames := tshark(t, goldenPcap, nil, dissectorFields...)
	if len(frames) != len(cases) {
		t.Fatalf("tshark shows %d of %d frames", len(frames), len(cases))
	}
	for i, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			got := frames[i]
			message := got["_ws.expert.message"]
			if strings.Contains(message, "Lua Error") {
				t.Fatalf("the dissector fails: %s", message)
			}
			if c.Frame != "ok" {
				return // Wireshark decides whether damaged datagrams are dissected
			}
			want := shown(c)
			for field, value := range want {
				if diff := cmp.Diff(value, normalise(field, got[field])); diff != "" {
					t.Errorf("%s (-index +tshark):\n%s", field, diff)
				}
			}
			malformed := strings.Contains(strings.ToLower(message), "malformed")
			if malformed != (c.Payload == "length" || c.Payload == "truncated") {
				t.Errorf("payload is %q, Wireshark says %q", c.Payload, message)
			}
			for text, expected := range map[string]bool{
				"Another protocol version": c.Payload == "version",
				"Unknown type":             c.Name == "unknown-type",
				"Frame refused":            c.Refusal != nil,
			} {
				if strings.Contains(message, text) != expected {
					t.Errorf("expert information %q; %q expected: %v", message, text, expected)
				}
			}
			if c.Refusal != nil && !strings.Contains(message, c.Refusal.Text) {
				t.Errorf("expert information %q does not name the code %q", message, c.Refusal.Text)
			}
		})
	}
}

// shown returns the fields that the dissector must show, in the form of normalise.
func shown(c golden.Case) map[string]string {
	m := map[string]string{}
	if c.Header == nil {
		return m
	}
	payload := c.Bytes[len(c.Bytes)-payloadLen(c):]
	m["libra.version"] = fmt.Sprint(payload[0] >> 4)
	m["libra.type"] = fmt.Sprint(payload[0] & 15)
	m["libra.flags"] = fmt.Sprintf("0x%02x", payload[1])
	m["libra.job"] = fmt.Sprint(c.Header.Job)
	m["libra.sender"] = fmt.Sprint(c.Header.Sender)
	m["libra.epoch"] = fmt.Sprint(c.Header.Epoch)
	m["libra.seq"] = fmt.Sprint(c.Header.Seq)
	if c.Payload != "ok" {
		return m
	}
	dense := strings.Contains(c.Header.Flags, "DENSE")
	var masks, pages, lanes, slots, ranks, values, integers []string
	for _, s := range c.Stripes {
		mask, err := strconv.ParseUint(s.Mask, 16, 32)
		if err != nil {
			panic(err)
		}
		page := int(mask >> wire.Lanes)
		masks, pages = append(masks, "0x"+s.Mask), append(pages, fmt.Sprint(page))
		for _, p := range s.Pairs {
			var lane, slot int
			var bits uint32
			if _, err := fmt.Sscanf(p, "%d %d %x", &lane, &slot, &bits); err != nil {
				panic(err)
			}
			rank := slot
			if !dense {
				rank = slot*wire.Lanes + lane
				slots = append(slots, fmt.Sprint(slot))
			}
			lanes = append(lanes, fmt.Sprint(lane))
			ranks = append(ranks, fmt.Sprint(page*wire.PageRanks+rank))
			values = append(values, shortFloat(math.Float32frombits(bits)))
			integers = append(integers, fmt.Sprint(int32(bits)))
		}
	}
	m["libra.stripe.mask"] = strings.Join(masks, ";")
	m["libra.stripe.page"] = strings.Join(pages, ";")
	m["libra.pair.lane"] = strings.Join(lanes, ";")
	m["libra.pair.slot"] = strings.Join(slots, ";")
	m["libra.pair.rank"] = strings.Join(ranks, ";")
	m["libra.pair.value"] = strings.Join(values, ";")
	m["libra.pair.integer"] = strings.Join(integers, ";")
	m["libra.scale.iteration"], m["libra.scale.exponent"] = "", ""
	if s := c.Scale; s != nil {
		m["libra.scale.iteration"], m["libra.scale.exponent"] = fmt.Sprint(s.Iteration), fmt.Sprint(s.Exponent)
	}
	for _, field := range []string{"step", "step.hot_sent", "step.hot_answered", "step.first", "step.room", "step.rows", "step.width"} {
		m["libra."+field] = ""
	}
	if s := c.Step; s != nil {
		m["libra.step"], m["libra.step.hot_sent"], m["libra.step.hot_answered"] = fmt.Sprint(s.Step), fmt.Sprint(s.HotSent), fmt.Sprint(s.HotAnswered)
		m["libra.step.first"], m["libra.step.room"] = fmt.Sprint(s.First), fmt.Sprint(s.Room)
	}
	if s := c.Sums; s != nil {
		m["libra.step"], m["libra.step.first"], m["libra.step.rows"] = fmt.Sprint(s.Step), fmt.Sprint(s.First), fmt.Sprint(s.Rows)
		m["libra.step.width"] = fmt.Sprint(s.Width)
	}
	m["libra.taken.first"], m["libra.taken.round"] = "", ""
	if r := c.Taken; r != nil {
		m["libra.taken.first"], m["libra.taken.round"] = fmt.Sprint(r.First), fmt.Sprint(r.Round)
	}
	m["libra.cover"], m["libra.takers"] = "", ""
	if c.Cover != "" {
		field := "libra.cover"
		if strings.Contains(c.Header.Flags, "TAKEN") {
			field = "libra.takers"
		}
		m[field] = "0x" + c.Cover
	}
	if r := c.Rows; r != nil {
		m["libra.count"], m["libra.dim"] = fmt.Sprint(r.Count), fmt.Sprint(r.Dim)
		var keys, values []string
		for _, k := range r.Keys {
			keys = append(keys, "0x"+k)
		}
		m["libra.codes"] = r.Codes
		shownRows := r.Rows
		if r.Codes != "" { // whose values depend on bound and scale
			shownRows = nil
		}
		for _, row := range shownRows {
			for _, v := range strings.Fields(row) {
				bits, err := strconv.ParseUint(v, 16, 32)
				if err != nil {
					panic(err)
				}
				values = append(values, shortFloat(math.Float32frombits(uint32(bits))))
			}
		}
		m["libra.numbering"], m["libra.number"] = "", strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Numbers), " ", ";"), "[]")
		if r.Numbering != "" {
			m["libra.numbering"] = "0x" + r.Numbering
		}
		m["libra.key"], m["libra.row.value"] = strings.Join(keys, ";"), strings.Join(values, ";")
	}
	for _, field := range []string{"operation", "first", "step", "bound", "scale"} {
		m["libra.block."+field] = ""
	}
	if b := c.Block; b != nil {
		m["libra.block.operation"], m["libra.block.first"], m["libra.count"] = fmt.Sprint(b.Operation), fmt.Sprint(b.First), fmt.Sprint(b.Count)
		m["libra.block.step"], m["libra.block.bound"], m["libra.block.scale"] = fmt.Sprint(b.Step), fmt.Sprint(b.Bound), fmt.Sprint(b.Scale)
		m["libra.codes"], m["libra.row.value"] = b.Codes, shownFloats(b)
	}
	if r := c.Refusal; r != nil {
		m["libra.error.code"], m["libra.error.index"], m["libra.error.value"] = fmt.Sprint(r.Code), fmt.Sprint(r.Index), fmt.Sprint(r.Value)
	}
	return m
}

// shownFloats returns the values of a BLOCK that the dissector shows: it does not decode codes.
func shownFloats(b *golden.Block) string {
	if b.Codes != "" {
		return ""
	}
	var values []string
	for _, v := range strings.Fields(b.Values) {
		bits, err := strconv.ParseUint(v, 16, 32)
		if err != nil {
			panic(err)
		}
		values = append(values, shortFloat(math.Float32frombits(uint32(bits))))
	}
	return strings.Join(values, ";")
}

func payloadLen(c golden.Case) int {
	p, err := wire.ParseFrame(c.Bytes, wire.DefaultPort)
	if err != nil {
		panic(err)
	}
	padding := 0
	if c.Name == "ack" {
		padding = 6
	}
	return len(p.Payload) + padding
}

// normalise rewrites the floats of a field, of which Wireshark shows six
// digits.
func normalise(field, shown string) string {
	if !strings.HasSuffix(field, ".value") || field == "libra.error.value" || shown == "" {
		return shown
	}
	var out []string
	for v := range strings.SplitSeq(shown, ";") {
		x, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return shown
		}
		out = append(out, shortFloat(float32(x)))
	}
	return strings.Join(out, ";")
}

func shortFloat(x float32) string {
	if x != x {
		return "NaN"
	}
	return strconv.FormatFloat(float64(x), 'g', 6, 32)
}

// TestDissectorPort moves the dissector to another port.
func TestDissectorPort(t *testing.T) {
	for i, frame := range tshark(t, goldenPcap, []string{"-o", "libra.port:53"}, "libra.seq", "udp.dstport") {
		if onPort := frame["udp.dstport"] == "53"; onPort != (frame["libra.seq"] != "") {
			t.Errorf("frame %d to port %s: sequence number %q", i+1, frame["udp.dstport"], frame["libra.seq"])
		}
	}
}

// TestDissectorOfShortCaptures truncates the frames like a snapshot length.
func TestDissectorOfShortCaptures(t *testing.T) {
	for _, snap := range []int{wire.EnvelopeLen, wire.EnvelopeLen + 5, wire.EnvelopeLen + wire.HeaderLen, 100} {
		path := filepath.Join(t.TempDir(), "short.pcap")
		if err := os.WriteFile(path, capture(t, snap), 0o666); err != nil {
			t.Fatal(err)
		}
		frames := tshark(t, path, nil, "_ws.expert.message", "libra.seq")
		first := frames[0] // hot-aligned-1
		if cut := strings.Contains(first["_ws.expert.message"], "does not hold the whole frame"); cut != (snap > wire.EnvelopeLen) {
			t.Errorf("cut to %d bytes: %+v", snap, first)
		}
		for i, f := range frames {
			if strings.Contains(f["_ws.expert.message"], "Lua Error") {
				t.Errorf("frame %d cut to %d bytes: %s", i+1, snap, f["_ws.expert.message"])
			}
		}
	}
}
