// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// goldenFrame is a frame before it is written to testdata.
type goldenFrame struct {
	name, about string
	bytes       []byte
}

var (
	worker     = endpoint(1, "10.76.66.1")
	server     = endpoint(0x80, "10.76.66.128")
	switchHost = endpoint(0xfe, "10.76.66.254")
	worker2    = endpoint(2, "10.76.66.2")
	worker6    = endpoint(1, "fd00:4c42::1")
	switch6    = endpoint(0xfe, "fd00:4c42::fe")
)

func endpoint(n byte, ip string) wire.Endpoint {
	return wire.Endpoint{MAC: [6]byte{0x02, 'L', 'B', 0, 0, n}, IP: netip.MustParseAddr(ip), Port: wire.DefaultPort}
}

// seal adds the headers before a payload.
func seal(src, dst wire.Endpoint, payload []byte) []byte {
	e, err := wire.NewEnvelope(src, dst)
	if err != nil {
		panic(err)
	}
	frame := make([]byte, e.Len()+len(payload))
	copy(frame[e.Len():], payload)
	e.Seal(frame)
	return frame
}

// tag inserts an 802.1Q tag.
func tag(frame []byte, id uint16) []byte {
	return slices.Insert(frame, 12, 0x81, 0x00, byte(id>>8), byte(id))
}

func header(t wire.Type, f wire.Flags) wire.Header {
	return wire.Header{Type: t, Flags: f, Job: 3, Sender: 1, Epoch: 7, Seq: 0x01020304}
}

// pair is a gradient in a lane.
type pair struct {
	lane int
	slot uint16
	val  float32
}

// hot returns the payload of a frame with the stripes.
func hot(h wire.Header, stripes ...[]pair) []byte {
	b := make([]byte, wire.HotLen(len(stripes)))
	h.Put(b)
	for i, pairs := range stripes {
		s := wire.StripeAt(b, i)
		for _, p := range pairs {
			s.SetMask(s.Mask() | 1<<p.lane)
			s.SetSlot(p.lane, p.slot)
			s.SetValue(p.lane, p.val)
		}
	}
	return b
}

// full returns n stripes with a pair in every lane. In stripe i it is the
// slot i of the lane's register, or rank 22·i+lane: the same parameters.
func full(n int, dense bool) [][]pair {
	stripes := make([][]pair, n)
	for i := range stripes {
		for lane := range wire.Lanes {
			p := pair{lane, uint16(i), float32(i*wire.Lanes+lane) / 4}
			if dense {
				p.slot = uint16(i*wire.Lanes + lane)
			}
			stripes[i] = append(stripes[i], p)
		}
	}
	return stripes
}

// step returns the payload of a STEP frame.
func step() []byte {
	b := make([]byte, wire.StepLen)
	header(wire.TypeStep, 0).Put(b)
	wire.StepEnd{Step: 1<<40 + 5, HotSent: 71, HotAnswered: 71, First: 238, Room: 512}.Put(b)
	return b
}

// sums returns the payload of a SUMS frame.
func sums(dim, width int, keys ...uint64) []byte {
	b := make([]byte, wire.SumsLen(len(keys), dim, width))
	header(wire.TypeSums, 0).Put(b)
	values := make([]float32, len(keys)*dim)
	for i := range values {
		values[i] = float32(i/dim) + float32(i%dim)/16
	}
	wire.PutStepSums(b, wire.SumsHead{Step: 1<<40 + 5, Rows: 1000, First: 238, Width: width}, keys, dim, values)
	return b
}

// block returns the payload of a BLOCK frame of step 5, whose values begin at 640.
func block(bound uint8, values ...float32) []byte {
	body := make([]byte, 4*len(values))
	wire.PutFloats(body, values)
	head := wire.Block{Operation: 9, First: 640, Count: uint16(len(values)), Step: 5, Bound: bound}
	if bound > 0 {
		head.Scale = -2
		c, err := codec.New(codec.Config{Bound: int(bound), Scale: int(head.Scale)})
		if err != nil {
			panic(err)
		}
		body = c.Append(nil, values)
	}
	b := make([]byte, wire.BlockHead+len(body))
	header(wire.TypeBlock, 0).Put(b)
	head.Put(b)
	copy(b[wire.BlockHead:], body)
	return b
}

// presence returns the payload of a BLOCK frame without values.
func presence(bound uint8) []byte {
	b := make([]byte, wire.BlockHead)
	h := header(wire.TypeBlock, 0)
	h.Seq = 0
	h.Put(b)
	wire.Block{Operation: 9, First: 1000, Step: 4, Bound: bound}.Put(b)
	return b
}

// rows returns the payload of a frame of rows. For types with numbers, these are the lower bytes of
// the keys.
func rows(t wire.Type, dim int, keys ...uint64) []byte {
	n := map[wire.Type]int{
		wire.TypeCold:   wire.ColdLen(len(keys), dim),
		wire.TypePull:   wire.PullLen(len(keys)),
		wire.TypeRows:   wire.RowsLen(len(keys), dim),
		wire.TypeFind:   wire.PullLen(len(keys)),
		wire.TypeFound:  wire.FoundLen(len(keys)),
		wire.TypeColdAt: wire.ColdAtLen(len(keys), dim),
	}[t]
	b := make([]byte, n)
	header(t, 0).Put(b)
	named, numbered, valued := t.Body()
	put := wire.PutRows
	if numbered {
		put = func(b []byte, t wire.Type, n, dim int) wire.Rows { return wire.PutNumbered(b, t, n, dim, 0xa1b2c3d4) }
	}
	r := put(b, t, len(keys), dim)
	row, numbers := make([]float32, dim), make([]uint32, len(keys))
	for i, key := range keys {
		for j := range row {
			row[j] = float32(i) + float32(j)/16
		}
		if named {
			r.SetKey(i, key)
		}
		numbers[i] = uint32(key)
		if valued {
			r.SetRow(i, row)
		}
	}
	if numbered {
		r.SetNumbers(numbers)
	}
	return b
}

// coded returns the payload of a frame of two rows, or of one for each number, with these values in
// codes.
func coded(t wire.Type, dim int, values []float32, keys ...uint64) []byte {
	codes := goldenCodec.Append(nil, values)
	b := make([]byte, wire.CodedLen(t, len(keys), len(codes)))
	header(t, wire.FlagCoded).Put(b)
	r, place := wire.PutCoded(b, t, len(keys), dim, 0xa1b2c3d4)
	copy(place, codes)
	if t == wire.TypeCold {
		for i, key := range keys {
			r.SetKey(i, key)
		}
		return b
	}
	numbers := make([]uint32, len(keys))
	for i, key := range keys {
		numbers[i] = uint32(key)
	}
	r.SetNumbers(numbers)
	return b
}

// someCoded are values with all tags; the first row is docs/codec.md's first example.
var someCoded = []float32{0.75, -0.01, 0, 2.5, 0.001, 0.0009, 0, -1e-9, 0.25, -0.5, 0.002, -0.03}

func put8(b []byte, at int, v byte) []byte {
	b[at] = v
	return b
}

func put16(b []byte, at int, v uint16) []byte {
	binary.BigEndian.PutUint16(b[at:], v)
	return b
}

// goldenFrames returns the well-formed frames and then the broken ones.
func goldenFrames() []goldenFrame {
	return append(goodFrames(), brokenFrames()...)
}

func goodFrames() []goldenFrame {
	some := []pair{{0, 1818, 1}, {3, 0, -0.5}, {21, 2977, 0.0625}}
	ranked := []pair{{0, 39996, 1}, {1, 3, -0.5}, {2, 65535, 0.0625}}
	keys := []uint64{1, 0xfedcba9876543210, 42}
	toSwitch := func(p []byte) []byte { return seal(worker, switchHost, p) }
	toWorker := func(p []byte) []byte { return seal(switchHost, worker, p) }
	toAll := func(p []byte) []byte { return seal(switchHost, wire.AllOf(3, wire.DefaultPort), p) }
	group := append(full(1, false), []pair{{0, 1, 0.5}, {1, 1, -4}})
	decided := wire.ScaleReport{Iteration: 258, Exponent: 133}
	taken := wire.TakenReport{First: 10, Round: 9}
	ack := func() []byte { return make([]byte, wire.MaxPayload) }

	wrapped := header(wire.TypeHot, 0)
	wrapped.Seq = math.MaxUint32
	special := []pair{
		{0, 0, math.Float32frombits(0x7fc00000)}, {1, 1, float32(math.Inf(1))}, {2, 2, float32(math.Inf(-1))},
		{3, 3, math.SmallestNonzeroFloat32}, {4, 4, math.MaxFloat32}, {5, 5, math.Float32frombits(0x80000000)},
	}
	frames := []goldenFrame{
		{"hot-aligned-1", "HOT, lane-aligned, one stripe with three pairs: 190 bytes", toSwitch(hot(header(wire.TypeHot, 0), some))},
		{"hot-aligned-10", "HOT, lane-aligned, ten full stripes", toSwitch(hot(header(wire.TypeHot, 0), full(10, false)...))},
		{"hot-dense-1", "HOT, dense, one stripe with three pairs, the highest rank among them", toSwitch(hot(header(wire.TypeHot, wire.FlagDense), ranked))},
		{"hot-dense-10", "HOT, dense, ten full stripes: the same parameters and gradients as hot-aligned-10", toSwitch(hot(header(wire.TypeHot, wire.FlagDense), full(10, true)...))},
		{"hot-aligned-25", "HOT, lane-aligned, 25 full stripes: the longest frame", toSwitch(hot(header(wire.TypeHot, 0), full(25, false)...))},
		{"hot-dense-25", "HOT, dense, 25 full stripes: the same parameters and gradients as hot-aligned-25", toSwitch(hot(header(wire.TypeHot, wire.FlagDense), full(25, true)...))},
		{"hot-aligned-11", "HOT, lane-aligned, eleven full stripes: one more than an MTU of 1500 carries", toSwitch(hot(header(wire.TypeHot, 0), full(11, false)...))},
		{"hot-no-pairs", "HOT whose only stripe has an empty mask", toSwitch(hot(header(wire.TypeHot, 0), nil))},
		{"hot-want-sum", "HOT that asks for the sums", toSwitch(hot(header(wire.TypeHot, wire.FlagWantSum), some))},
		{"hot-retx", "retransmission of hot-aligned-1", toSwitch(hot(header(wire.TypeHot, wire.FlagRetx), some))},
		{"hot-quiet", "HOT that needs no answer of its own", toSwitch(hot(header(wire.TypeHot, wire.FlagQuiet), some))},
		{"hot-cover", "retransmission of hot-quiet, which asks for an answer that covers others", toSwitch(hot(header(wire.TypeHot, wire.FlagRetx|wire.FlagCover), some))},
		{"hot-last-seq", "HOT with the last sequence number before the wrap to 0", toSwitch(hot(wrapped, some))},
		{"hot-not-finite", "HOT, dense: NaN, two infinities, the smallest subnormal, the largest finite number, negative zero; well-formed, for a receiver to refuse", toSwitch(hot(header(wire.TypeHot, wire.FlagDense), special))},
		{"hot-page-aligned", "HOT, lane-aligned, the pairs of hot-aligned-1 in page 1, for a receiver whose job has one page to refuse", toSwitch(onPages(hot(header(wire.TypeHot, 0), some), 1))},
		{"hot-page-dense", "HOT, dense, three stripes, of pages 0, 2 and 1023, the last with the highest rank of all", toSwitch(onPages(hot(header(wire.TypeHot, wire.FlagDense), full(1, true)[0], ranked, ranked), 0, 2, 1023))},
		{"hot-vlan", "hot-aligned-1 with an 802.1Q tag, VLAN 5", tag(toSwitch(hot(header(wire.TypeHot, 0), some)), 5)},
		{"hot-ipv6", "hot-aligned-1 over IPv6", seal(worker6, switch6, hot(header(wire.TypeHot, 0), some))},
		{"hot-ipv6-vlan", "hot-aligned-1 over IPv6 with an 802.1Q tag, priority 3, VLAN 5", tag(seal(worker6, switch6, hot(header(wire.TypeHot, 0), some)), 3<<13|5)},
		{"hot-udp-checksum-0", "HOT whose UDP checksum computes to 0 and is therefore sent as 0xffff", toSwitch(zeroSum(some))},
		{"cold-scalars", "COLD, dimension 1: three (key, value) pairs", seal(worker, server, rows(wire.TypeCold, 1, keys...))},
		{"cold-rows", "COLD, three rows of dimension 4", seal(worker, server, rows(wire.TypeCold, 4, keys...))},
		{"pull", "PULL of three keys of dimension 4", seal(worker, server, rows(wire.TypePull, 4, keys...))},
		{"rows", "ROWS that answers pull", seal(server, worker, rows(wire.TypeRows, 4, keys...))},
		{"find", "FIND of the row numbers of three keys of dimension 4", seal(worker, server, rows(wire.TypeFind, 4, keys...))},
		{"found", "FOUND that answers find: rows 7 and 4000000000, and no row for the third key", seal(server, worker, rows(wire.TypeFound, 4, 7, 4000000000, 0))},
		{"cold-at-scalars", "COLD_AT, dimension 1: three (row number, value) pairs", seal(worker, server, rows(wire.TypeColdAt, 1, 7, 4000000000, 1))},
		{"cold-at-rows", "COLD_AT, two rows of dimension 4", seal(worker, server, rows(wire.TypeColdAt, 4, 7, 4000000000))},
		{"cold-coded", "COLD with CODED, three rows of dimension 4", seal(worker, server, coded(wire.TypeCold, 4, someCoded, keys...))},
		{"cold-coded-zeros", "COLD with CODED, two rows of dimension 40, all zeros: one byte for 64 of them", seal(worker, server, coded(wire.TypeCold, 40, make([]float32, 80), keys[:2]...))},
		{"cold-at-coded", "COLD_AT with CODED, dimension 1: three (row number, value) pairs", seal(worker, server, coded(wire.TypeColdAt, 1, someCoded[1:4], 7, 4000000000, 1))},
		{"cold-coded-quiet", "COLD with CODED that needs no answer of its own", seal(worker, server, quiet(coded(wire.TypeCold, 4, someCoded, keys...)))},
		{"step", "STEP: the end of step 2^40+5, 70 hot frames sent and answered", seal(worker, server, step())},
		{"sums", "SUMS that answers step: rows 238 and 239 of 1000, dimension 4, keys of 6 bytes", seal(server, worker, sums(4, 6, 7, 1<<40))},
		{"sums-scalars", "SUMS, dimension 1: four (key, sum) pairs, keys of 2 bytes", seal(server, worker, sums(1, 2, 1<<63, 1<<63+1, 1<<63+0x102, 1<<63+0xfffe))},
		{"block", "BLOCK: three values of a ring's vector, floats, from 640 on", seal(worker, worker2, block(0, 0.5, -3, 1e-9))},
		{"block-coded", "BLOCK with codes of bound 10 and scale -2", seal(worker, worker2, block(10, someCoded...))},
		{"block-zeros", "BLOCK with codes of 200 zeros: a byte for 64 of them", seal(worker, worker2, block(1, make([]float32, 200)...))},
		{"block-quiet", "BLOCK that needs no answer of its own", seal(worker, worker2, quiet(block(0, 0.5, -3, 1e-9)))},
		{"block-none", "BLOCK without values: its sender is in operation 9, of 1,000 values and 4 workers", seal(worker2, worker, presence(10))},
		{"ack", "ACK of hot-aligned-1, padded to the 60 bytes of the shortest Ethernet frame", append(toWorker(wire.PutAck(ack(), header(wire.TypeHot, 0))), make([]byte, 6)...)},
		{"ack-cover", "ACK of hot-cover, of the two frames before it and of the third behind it", toWorker(wire.PutCover(ack(), header(wire.TypeHot, 0), 7<<wire.CoverAhead|1<<(wire.CoverAhead-3)))},
		{"ack-cover-round", "ACK of hot-cover in a job with rounds, to which the senders at positions 0, 2 and 63 have contributed", toWorker(wire.PutCover(ack(), header(wire.TypeHot, 0), 1<<63|5))},
		{"ack-sums-aligned", "ACK of hot-want-sum with the sums", toWorker(hot(header(wire.TypeAck, wire.FlagSum), []pair{{0, 1818, 4.5}, {3, 0, -2}, {21, 2977, 0.125}}))},
		{"ack-sums-25", "ACK with the sums of 25 dense stripes", toWorker(hot(header(wire.TypeAck, wire.FlagSum|wire.FlagDense), full(25, true)...))},
		{"ack-sums-dense", "ACK with the sums of two dense stripes", toWorker(hot(header(wire.TypeAck, wire.FlagSum|wire.FlagDense), full(2, true)...))},
		{"ack-sums-pages", "ACK with the sums of two dense stripes, of pages 0 and 2", toWorker(onPages(hot(header(wire.TypeAck, wire.FlagSum|wire.FlagDense), full(2, true)...), 0, 2))},
		{"hot-group", "HOT of a job with rounds: a whole group, whose last stripe has two ranks", toSwitch(hot(header(wire.TypeHot, 0), group...))},
		{"ack-all", "ACK to all workers with the sums of a round, number 9 of the group of hot-group", toAll(wire.ToAll(hot(header(wire.TypeAck, wire.FlagSum), group...), 9))},
		{"ack-all-vlan", "ack-all with an 802.1Q tag, VLAN 5", tag(toAll(wire.ToAll(hot(header(wire.TypeAck, wire.FlagSum), group...), 9)), 5)},
		{"scale", "SCALE: the largest gradient of iteration 258 has exponent 130, that is 8 to 16", toSwitch(wire.PutScale(ack(), header(0, 0), wire.ScaleReport{Iteration: 258, Exponent: 130}))},
		{"ack-scale", "ACK of scale: other workers' reports are missing", toWorker(wire.PutScaleAck(ack(), header(wire.TypeScale, 0)))},
		{"ack-scale-decided", "ACK of scale, repeated after the decision", toWorker(wire.PutDecision(ack(), header(wire.TypeScale, 0), decided))},
		{"ack-scale-all", "ACK to all workers with the decision", toAll(wire.ToAll(wire.PutDecision(ack(), header(wire.TypeScale, 0), decided), decided.Iteration))},
		{"taken", "TAKEN: the sender has the sums of round 9 of the group whose first slot is 10", toSwitch(wire.PutTaken(ack(), header(0, 0), taken))},
		{"ack-taken", "ACK of taken, repeated after all workers had the sums", toWorker(wire.PutConfirmation(ack(), header(wire.TypeTaken, 0), taken))},
		{"ack-taken-cover", "ACK of taken, repeated when the senders at positions 0 and 63 have the sums", toWorker(wire.PutTakers(ack(), header(wire.TypeTaken, 0), 1<<63|1))},
		{"ack-taken-all", "ACK to all workers, all of which have the sums", toAll(wire.ToAll(wire.PutConfirmation(ack(), header(wire.TypeTaken, 0), taken), taken.Round))},
		{"unknown-type", "type 15, which this version of the protocol does not define", toSwitch(hot(header(15, 0), some))},
	}
	for _, r := range []struct {
		name string
		wire.Refusal
	}{
		{"unknown-job", wire.Refusal{Code: wire.CodeUnknownJob}},
		{"unknown-sender", wire.Refusal{Code: wire.CodeUnknownSender}},
		{"slot-range", wire.Refusal{Code: wire.CodeSlotRange, Index: 219, Value: 40000}},
		{"wrong-epoch", wire.Refusal{Code: wire.CodeWrongEpoch, Value: 8}},
		{"wrong-version", wire.Refusal{Code: wire.CodeWrongVersion, Value: wire.Version}},
		{"not-finite", wire.Refusal{Code: wire.CodeNotFinite, Index: 23}},
		{"overflow", wire.Refusal{Code: wire.CodeOverflow, Index: 1}},
		{"length", wire.Refusal{Code: wire.CodeLength, Value: 1}},
		{"mode", wire.Refusal{Code: wire.CodeMode}},
		{"layout", wire.Refusal{Code: wire.CodeLayout}},
		{"dimension", wire.Refusal{Code: wire.CodeDimension, Value: 16}},
		{"type", wire.Refusal{Code: wire.CodeType}},
		{"round", wire.Refusal{Code: wire.CodeRound, Value: 9}},
		{"window", wire.Refusal{Code: wire.CodeWindow, Value: 0x01020600}},
		{"rows-full", wire.Refusal{Code: wire.CodeRowsFull, Index: 35, Value: 1 << 26}},
		{"numbering", wire.Refusal{Code: wire.CodeNumbering, Value: 0xa1b2c3d4}},
		{"row-number", wire.Refusal{Code: wire.CodeRowNumber, Index: 35, Value: 7}},
		{"step", wire.Refusal{Code: wire.CodeStep}},
		{"no-weights", wire.Refusal{Code: wire.CodeNoWeights}},
		{"coding", wire.Refusal{Code: wire.CodeCoding}},
		{"unassigned", wire.Refusal{Code: 999, Index: 1, Value: 2}},
	} {
		frames = append(frames, goldenFrame{
			"error-" + r.name, fmt.Sprintf("ERROR %d: %v", uint16(r.Code), r.Code),
			toWorker(wire.PutError(ack(), header(wire.TypeHot, wire.FlagDense), r.Refusal)),
		})
	}
	return frames
}

func quiet(b []byte) []byte { return put8(b, 1, b[1]|byte(wire.FlagQuiet)) }

// onPages moves the stripes of a payload to pages.
func onPages(b []byte, pages ...int) []byte {
	for i, page := range pages {
		s := wire.StripeAt(b, i)
		s.SetPage(page, s.Mask())
	}
	return b
}

// zeroSum returns a payload for worker to switchHost whose UDP checksum is 0: the first slot
// complements the sum of the rest.
func zeroSum(pairs []pair) []byte {
	b := hot(header(wire.TypeHot, 0), pairs)
	s := wire.StripeAt(b, 0)
	s.SetSlot(0, 0)
	frame := seal(worker, switchHost, b)
	s.SetSlot(0, binary.BigEndian.Uint16(frame[wire.EnvelopeLen-2:]))
	return b
}

func brokenFrames() []goldenFrame {
	const (
		ip, udp, payload = 14, 34, wire.EnvelopeLen
		body             = wire.HeaderLen
	)
	good := func() []byte {
		return seal(worker, switchHost, hot(header(wire.TypeHot, 0), []pair{{0, 1818, 1}}))
	}
	// edit changes a valid frame and keeps its checksums, wrong or right.
	edit := func(change func(b []byte) []byte) []byte { return change(good()) }
	// forged changes an IPv4 header and makes its checksum right again.
	forged := func(change func(b []byte)) []byte {
		b := good()
		change(b)
		put16(b, ip+10, 0)
		return put16(b, ip+10, ^naiveSum(b[ip:ip+20]))
	}
	to := func(p []byte) []byte { return seal(worker, switchHost, p) }
	back := func(p []byte) []byte { return seal(switchHost, worker, p) }
	cold := func() []byte { return rows(wire.TypeCold, 4, 1, 2) }
	codes := func() []byte { return coded(wire.TypeCold, 4, someCoded[:8], 1, 2) }
	version2 := hot(header(wire.TypeHot, 0), []pair{{0, 1818, 1}})
	version2[0] = 2<<4 | byte(wire.TypeHot)
	otherPort := switchHost
	otherPort.Port = 53

	return []goldenFrame{
		{"broken-ipv4-checksum", "IPv4 header checksum off by one", edit(func(b []byte) []byte { b[ip+11]++; return b })},
		{"broken-udp-checksum", "one bit of the payload flipped", edit(func(b []byte) []byte { b[len(b)-1] ^= 1; return b })},
		{"broken-no-udp-checksum", "UDP checksum 0: absent, which IPv4 allows and Libra does not", edit(func(b []byte) []byte { return put16(b, udp+6, 0) })},
		{"broken-cut", "the frame ends ten bytes before the datagram does", edit(func(b []byte) []byte { return b[:len(b)-10] })},
		{"broken-ip-length", "IPv4 total length too small for the UDP header", forged(func(b []byte) { put16(b, ip+2, 27) })},
		{"broken-udp-length", "UDP length goes beyond the IPv4 total length", edit(func(b []byte) []byte { return put16(b, udp+4, 157) })},
		{"broken-short-header", "UDP payload of 11 bytes", to(make([]byte, wire.HeaderLen-1))},
		{"broken-version", "protocol version 2", to(version2)},
		{"broken-hot-empty", "HOT without a stripe", to(hot(header(wire.TypeHot, 0)))},
		{"broken-hot-partial", "HOT that ends within its second stripe", to(hot(header(wire.TypeHot, 0), full(2, false)...)[:body+wire.StripeLen+8])},
		{"broken-hot-26", "HOT with 26 stripes", to(hot(header(wire.TypeHot, 0), full(26, false)...))},
		{"broken-cold-head", "COLD that ends before its dimension", seal(worker, server, cold()[:body+2])},
		{"broken-cold-count-0", "COLD with count 0", seal(worker, server, put16(cold(), body, 0))},
		{"broken-cold-dim-0", "COLD with dimension 0", seal(worker, server, put16(cold(), body+2, 0))},
		{"broken-cold-count", "COLD that announces one row more than it holds", seal(worker, server, put16(cold(), body, 3))},
		{"broken-pull-trailing", "PULL with four bytes more than its keys", seal(worker, server, append(rows(wire.TypePull, 4, 1, 2), 0, 0, 0, 0))},
		{"broken-rows-dim", "ROWS whose dimension does not fit its length", seal(server, worker, put16(rows(wire.TypeRows, 4, 1, 2), body+2, 5))},
		{"broken-find-trailing", "FIND with four bytes more than its keys", seal(worker, server, append(rows(wire.TypeFind, 4, 1, 2), 0, 0, 0, 0))},
		{"broken-found-head", "FOUND that ends before its numbering", seal(server, worker, rows(wire.TypeFound, 4, 1)[:body+4])},
		{"broken-found-count", "FOUND that announces one number more than it holds", seal(server, worker, put16(rows(wire.TypeFound, 4, 1, 2), body, 3))},
		{"broken-cold-at-count", "COLD_AT that announces one row more than it holds", seal(worker, server, put16(rows(wire.TypeColdAt, 4, 1, 2), body, 3))},
		{"broken-cold-coded-no-codes", "COLD with CODED that ends after its keys", seal(worker, server, codes()[:body+4+8*2])},
		{"broken-cold-coded-cut", "COLD with CODED whose codes end within the last value", seal(worker, server, codes()[:len(codes())-1])},
		{"broken-cold-coded-trailing", "COLD with CODED and a byte more than its codes", seal(worker, server, append(codes(), 0))},
		{"broken-cold-coded-count-0", "COLD with CODED and count 0", seal(worker, server, put16(codes(), body, 0))},
		{"broken-cold-coded-empty-burst", "COLD with CODED and a marked burst of zeros", seal(worker, server, put16(codes(), body+4+8*2+1, 0))},
		{"broken-cold-coded-beyond", "COLD with CODED, whose marks have a burst beyond the last value", seal(worker, server, put8(codes(), body+4+8*2, 0xc0))},
		{"broken-cold-coded-16385", "COLD with CODED and 16,385 zeros, one more than a frame may have", seal(worker, server, coded(wire.TypeCold, 3277, make([]float32, 5*3277), 1, 2, 3, 4, 5))},
		{"broken-cold-at-coded-head", "COLD_AT with CODED that ends before its numbering", seal(worker, server, coded(wire.TypeColdAt, 1, someCoded[:1], 1)[:body+4])},
		{"broken-block-head", "BLOCK that ends within its head", seal(worker, worker2, block(0)[:wire.BlockHead-1])},
		{"broken-block-count", "BLOCK that announces one value more than it holds", seal(worker, worker2, put16(block(0, 1, 2), body+8, 3))},
		{"broken-block-bound-15", "BLOCK with a bound that no codec has", seal(worker, worker2, put8(block(10, someCoded...), body+12, 15))},
		{"broken-block-scale-127", "BLOCK with a scale that no codec has", seal(worker, worker2, put8(block(10, someCoded...), body+13, 127))},
		{"broken-block-scale-low", "BLOCK with the scale -127", seal(worker, worker2, put8(block(10, someCoded...), body+13, 129))},
		{"broken-block-no-codes", "BLOCK with a bound and a count that ends after its head", seal(worker, worker2, block(10, someCoded...)[:wire.BlockHead])},
		{"broken-block-cut", "BLOCK whose codes end within the last value", seal(worker, worker2, block(10, someCoded...)[:len(block(10, someCoded...))-1])},
		{"broken-block-trailing", "BLOCK with a byte more than its codes", seal(worker, worker2, append(block(10, someCoded...), 0))},
		{"broken-block-16385", "BLOCK with codes of 16,385 zeros, one more than a frame may have", seal(worker, worker2, block(10, make([]float32, wire.MaxCoded+1)...))},
		{"broken-block-none", "BLOCK with count 0 and a value", seal(worker, worker2, append(presence(0), 0, 0, 0, 0))},
		{"broken-step-short", "STEP that ends within its room", seal(worker, server, step()[:wire.StepLen-1])},
		{"broken-sums-head", "SUMS that ends before its step", seal(server, worker, sums(4, 1, 1)[:body+4])},
		{"broken-sums-count", "SUMS that announces one row more than it holds", seal(server, worker, put16(sums(4, 1, 1, 2), body, 3))},
		{"broken-sums-beyond", "SUMS with a row beyond those of the step", seal(server, worker, put16(sums(4, 1, 1, 2), body+4+14, 999))},
		{"broken-sums-first", "SUMS whose first row has a key that is not the first one", seal(server, worker, put8(sums(4, 1, 1, 2), body+29, 1))},
		{"broken-sums-width-0", "SUMS with keys of 0 bytes", seal(server, worker, put8(sums(4, 1, 1, 2), body+28, 0))},
		{"broken-sums-width-9", "SUMS with keys of 9 bytes", seal(server, worker, put8(append(sums(4, 8, 1, 2), 0, 0), body+28, 9))},
		{"broken-cold-at-dim-0", "COLD_AT with dimension 0", seal(worker, server, put16(rows(wire.TypeColdAt, 4, 1, 2), body+2, 0))},
		{"broken-ack-trailing", "ACK without SUM that has a body", back(hot(header(wire.TypeAck, 0), []pair{{0, 1, 1}}))},
		{"broken-ack-no-cover", "ACK with COVER that has no body", back(wire.PutCover(make([]byte, wire.CoverLen), header(wire.TypeHot, 0), 0)[:wire.HeaderLen])},
		{"broken-ack-no-sums", "ACK with SUM that has no body", back(hot(header(wire.TypeAck, wire.FlagSum)))},
		{"broken-ack-scale-trailing", "ACK with SCALE and without SUM that has a body", back(append(wire.PutScaleAck(make([]byte, wire.ScaleLen), header(0, 0)), make([]byte, 8)...))},
		{"broken-ack-scale-sums", "ACK with SCALE and SUM that has a stripe", back(hot(header(wire.TypeAck, wire.FlagSum|wire.FlagScale), []pair{{0, 1, 1}}))},
		{"broken-taken-short", "TAKEN that ends within its round", to(wire.PutTaken(make([]byte, wire.TakenLen), header(0, 0), wire.TakenReport{Round: 9})[:body+7])},
		{"broken-ack-taken-short", "ACK with TAKEN that has no body", back(wire.PutConfirmation(make([]byte, wire.TakenLen), header(0, 0), wire.TakenReport{})[:body])},
		{"broken-ack-taken-sums", "ACK with TAKEN and SUM that has a stripe", back(hot(header(wire.TypeAck, wire.FlagSum|wire.FlagTaken), []pair{{0, 1, 1}}))},
		{"broken-scale-short", "SCALE that ends after its exponent", to(wire.PutScale(make([]byte, wire.ScaleLen), header(0, 0), wire.ScaleReport{Iteration: 1})[:body+5])},
		{"broken-error-short", "ERROR that ends before its value", back(wire.PutError(make([]byte, wire.ErrorLen), header(wire.TypeHot, 0), wire.Refusal{Code: 4})[:wire.ErrorLen-4])},
		{"foreign-port", "UDP to another port", seal(worker, otherPort, hot(header(wire.TypeHot, 0), []pair{{0, 1818, 1}}))},
		{"foreign-tcp", "IPv4 with another protocol than UDP", forged(func(b []byte) { b[ip+9] = 6 })},
		{"foreign-fragment", "first fragment of a datagram", forged(func(b []byte) { put16(b, ip+6, 0x2000) })},
		{"foreign-last-fragment", "last fragment of a datagram", forged(func(b []byte) { put16(b, ip+6, 0x0010) })},
		{"foreign-ip-options", "IPv4 header with an option", forged(func(b []byte) { b[ip] = 0x46 })},
		{"foreign-ipv6-extension", "IPv6 with a hop-by-hop extension header", func() []byte {
			b := seal(worker6, switch6, hot(header(wire.TypeHot, 0), nil))
			b[ip+6] = 0
			return b
		}()},
		{"foreign-two-tags", "two 802.1Q tags", tag(tag(good(), 5), 6)},
		{"foreign-arp", "another EtherType", edit(func(b []byte) []byte { return put16(b, 12, 0x0806) })},
		{"foreign-short", "the frame ends within the UDP header", edit(func(b []byte) []byte { return b[:payload-1] })},
	}
}

// naiveSum is RFC 1071's sum, word by word.
func naiveSum(b []byte) uint16 {
	var acc uint32
	for i, x := range b {
		acc += uint32(x) << (8 * (1 - i%2))
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}
