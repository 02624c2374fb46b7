// SPDX-License-Identifier: Apache-2.0

// Package layers adds Libra's frames to gopacket. Importing it registers [LayerTypeLibra] for UDP
// port [wire.DefaultPort]:
//
//	packet := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
//	if l, ok := packet.Layer(libralayers.LayerTypeLibra).(*libralayers.Libra); ok {
//		fmt.Println(l.Header.Type, l.Header.Seq)
//	}
//
// It is for tools and tests. Data paths use package wire, which does not allocate.
//
// # Units, errors, ownership, goroutines
//
// Lengths are bytes, numbers those of package wire. Decoding errors are gopacket's error layer or
// those of wire. A layer keeps the bytes from which it was decoded, and copies of their numbers;
// one goroutine at a time uses it.
package layers

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// LayerTypeLibra is the layer type of [Libra]. Its number is the port's; numbers from 2000 on are
// free for applications.
var LayerTypeLibra = gopacket.RegisterLayerType(wire.DefaultPort, gopacket.LayerTypeMetadata{
	Name: "Libra", Decoder: gopacket.DecodeFunc(decode),
})

func init() {
	layers.RegisterUDPPortLayerType(wire.DefaultPort, LayerTypeLibra)
}

// Libra is the payload of a Libra frame: header and body. The type determines which of the body's
// fields are used.
type Libra struct {
	layers.BaseLayer

	Version uint8 // as received; 0 is written as [wire.Version]
	Header  wire.Header

	Stripes []wire.Stripe // HOT, and ACK with [wire.FlagSum]

	Dim       int       // COLD, PULL, ROWS, FIND, FOUND, COLD_AT, SUMS
	Keys      []uint64  // COLD, PULL, FIND, SUMS
	Numbering uint32    // FOUND, COLD_AT
	Numbers   []uint32  // FOUND, COLD_AT: of rows
	Values    []float32 // COLD, ROWS, COLD_AT, SUMS: row after row, Dim floats each
	Codes     []byte    // COLD, COLD_AT with [wire.FlagCoded], instead of Values: see package codec

	Step wire.StepEnd  // STEP
	Sums wire.SumsHead // SUMS; Least is that of Keys

	Scale wire.ScaleReport // SCALE, and ACK with [wire.FlagScale] and [wire.FlagSum]

	Taken wire.TakenReport // TAKEN, and ACK with [wire.FlagTaken] and without [wire.FlagCover]

	Cover uint64 // ACK with [wire.FlagCover]: see [wire.PutCover] and [wire.PutTakers]

	// BLOCK; the values, as they are in the frame, are Blocks: floats, or codes.
	Block  wire.Block
	Blocks []byte

	Refusal wire.Refusal // ERROR
}

var (
	_ gopacket.ApplicationLayer  = (*Libra)(nil)
	_ gopacket.DecodingLayer     = (*Libra)(nil)
	_ gopacket.SerializableLayer = (*Libra)(nil)
)

// LayerType returns [LayerTypeLibra].
func (l *Libra) LayerType() gopacket.LayerType { return LayerTypeLibra }

// CanDecode returns [LayerTypeLibra].
func (l *Libra) CanDecode() gopacket.LayerClass { return LayerTypeLibra }

// NextLayerType returns gopacket.LayerTypeZero: nothing follows.
func (l *Libra) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// Payload returns nil: the body is part of the layer.
func (l *Libra) Payload() []byte { return nil }

func decode(data []byte, p gopacket.PacketBuilder) error {
	l := &Libra{}
	if err := l.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(l)
	p.SetApplicationLayer(l)
	return nil
}

// DecodeFromBytes decodes a UDP payload, and reuses the memory of l. It returns an error for
// a different protocol version, and for a body whose length does not match its type. The body of an
// unknown type stays undecoded.
func (l *Libra) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	*l = Libra{
		BaseLayer: layers.BaseLayer{Contents: data},
		Stripes:   l.Stripes[:0], Keys: l.Keys[:0], Numbers: l.Numbers[:0], Values: l.Values[:0],
	}
	var err error
	if l.Header, err = wire.ParseHeader(data); err != nil {
		if len(data) < wire.HeaderLen {
			df.SetTruncated()
		}
		return fmt.Errorf("libra header: %w", err)
	}
	l.Version = wire.Version
	if err := l.decodeBody(data); err != nil {
		df.SetTruncated()
		return fmt.Errorf("libra %v body: %w", l.Header.Type, err)
	}
	return nil
}

func (l *Libra) decodeBody(data []byte) (err error) {
	stripes := 0
	if l.hasScale() {
		l.Scale, err = wire.ParseScale(data)
		return err
	}
	if l.hasTaken() {
		l.Taken, err = wire.ParseTaken(data)
		return err
	}
	switch l.Header.Type {
	case wire.TypeHot:
		stripes, err = wire.StripeCount(data)
	case wire.TypeAck:
		if stripes, err = wire.ParseAck(data, l.Header); err == nil {
			l.Cover = wire.Cover(data, l.Header)
		}
	case wire.TypeStep:
		l.Step, err = wire.ParseStep(data)
	case wire.TypeSums:
		err = l.decodeSums(data)
	case wire.TypeBlock:
		err = l.decodeBlock(data)
	case wire.TypeCold, wire.TypePull, wire.TypeRows, wire.TypeFind, wire.TypeFound, wire.TypeColdAt:
		err = l.decodeRows(data)
	case wire.TypeError:
		l.Refusal, err = wire.ParseRefusal(data)
	}
	for i := range stripes {
		l.Stripes = append(l.Stripes, *wire.StripeAt(data, i))
	}
	return err
}

// hasScale reports whether the body is a report or decision of a scale.
func (l *Libra) hasScale() bool {
	const decided = wire.FlagScale | wire.FlagSum
	return l.Header.Type == wire.TypeScale || l.Header.Type == wire.TypeAck && l.Header.Flags&decided == decided
}

// hasTaken reports whether the body names a round whose result is taken.
func (l *Libra) hasTaken() bool {
	const bodies = wire.FlagScale | wire.FlagSum | wire.FlagCover | wire.FlagTaken
	return l.Header.Type == wire.TypeTaken || l.Header.Type == wire.TypeAck && l.Header.Flags&bodies == wire.FlagTaken
}

// hasCover reports whether the body has a cover.
func (l *Libra) hasCover() bool {
	const bodies = wire.FlagScale | wire.FlagSum | wire.FlagCover
	return l.Header.Type == wire.TypeAck && l.Header.Flags&bodies == wire.FlagCover
}

// structure decodes codes of any bound and scale, to other values.
var structure, _ = codec.New(codec.Config{Bound: codec.MinBound})

// decodeCodes keeps the codes of a frame, if they are those of its rows.
func (l *Libra) decodeCodes(data []byte) (wire.Rows, error) {
	r, codes, err := wire.ParseCoded(data, l.Header.Type)
	if err != nil {
		return r, err
	}
	l.Codes = codes
	return r, structure.Decode(make([]float32, r.Count*r.Dim), codes)
}

// isCoded reports whether the body has codes instead of values.
func (l *Libra) isCoded() bool {
	t := l.Header.Type
	return (t == wire.TypeCold || t == wire.TypeColdAt) && l.Header.Flags&wire.FlagCoded != 0
}

func (l *Libra) decodeRows(data []byte) error {
	var r wire.Rows
	var err error
	if l.isCoded() {
		r, err = l.decodeCodes(data)
	} else {
		r, err = wire.ParseRows(data, l.Header.Type)
	}
	if err != nil {
		return err
	}
	l.Dim, l.Numbering = r.Dim, r.Numbering
	keys, numbers, floats := l.Header.Type.Body()
	floats = floats && !l.isCoded()
	row := make([]float32, r.Dim)
	for i := range r.Count {
		if keys {
			l.Keys = append(l.Keys, r.Key(i))
		}
		if numbers {
			l.Numbers = append(l.Numbers, r.Number(i))
		}
		if floats {
			r.Row(i, row)
			l.Values = append(l.Values, row...)
		}
	}
	return nil
}

func (l *Libra) decodeSums(data []byte) error {
	s, err := wire.ParseStepSums(data)
	if err != nil {
		return err
	}
	l.Dim, l.Sums = s.Dim, s.SumsHead
	l.Keys, l.Values = make([]uint64, s.Count), make([]float32, s.Count*s.Dim)
	s.Copy(l.Keys, l.Values)
	return nil
}

func (l *Libra) decodeBlock(data []byte) (err error) {
	if l.Block, l.Blocks, err = wire.ParseBlock(data); err != nil || l.Block.Bound == 0 || l.Block.Count == 0 {
		return err
	}
	return structure.Decode(make([]float32, l.Block.Count), l.Blocks)
}

// SerializeTo writes the header and the fields of the body that the type uses. It returns an error
// if the fields contradict each other, for instance if there are not Dim values for each key.
func (l *Libra) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	count, n, err := l.size()
	if err != nil {
		return err
	}
	data, err := b.PrependBytes(n)
	if err != nil {
		return err
	}
	clear(data)
	l.Header.Put(data)
	if l.Version != 0 {
		data[0] = l.Version<<4 | data[0]&0xf
	}
	if l.hasScale() {
		l.Scale.Put(data)
		return nil
	}
	if l.hasTaken() {
		l.Taken.Put(data)
		return nil
	}
	if l.hasCover() {
		binary.BigEndian.PutUint64(data[wire.HeaderLen:], l.Cover)
		return nil
	}
	switch l.Header.Type {
	case wire.TypeError:
		l.Refusal.Put(data)
	case wire.TypeStep:
		l.Step.Put(data)
	case wire.TypeBlock:
		l.Block.Put(data)
		copy(data[wire.BlockHead:], l.Blocks)
	case wire.TypeSums:
		wire.PutStepSums(data, l.Sums, l.Keys, l.Dim, l.Values)
	case wire.TypeCold, wire.TypePull, wire.TypeRows, wire.TypeFind, wire.TypeFound, wire.TypeColdAt:
		l.putRows(data, count)
	default:
		for i := range l.Stripes {
			*wire.StripeAt(data, i) = l.Stripes[i]
		}
	}
	return nil
}

func (l *Libra) putRows(data []byte, count int) {
	keys, numbers, floats := l.Header.Type.Body()
	floats = floats && !l.isCoded()
	var r wire.Rows
	switch {
	case l.isCoded():
		var codes []byte
		r, codes = wire.PutCoded(data, l.Header.Type, count, l.Dim, l.Numbering)
		copy(codes, l.Codes)
		if numbers {
			r.SetNumbers(l.Numbers)
		}
	case numbers:
		r = wire.PutNumbered(data, l.Header.Type, count, l.Dim, l.Numbering)
		r.SetNumbers(l.Numbers)
	default:
		r = wire.PutRows(data, l.Header.Type, count, l.Dim)
	}
	for i := range count {
		if keys {
			r.SetKey(i, l.Keys[i])
		}
		if floats {
			r.SetRow(i, l.Values[i*l.Dim:])
		}
	}
}

// size returns the number of rows and the length of the encoded layer.
func (l *Libra) size() (count, n int, err error) {
	if l.hasScale() {
		return 0, wire.ScaleLen, nil
	}
	if l.hasTaken() {
		return 0, wire.TakenLen, nil
	}
	if l.hasCover() {
		return 0, wire.CoverLen, nil
	}
	switch l.Header.Type {
	case wire.TypeHot, wire.TypeAck:
		return 0, wire.HotLen(len(l.Stripes)), nil
	case wire.TypeError:
		return 0, wire.ErrorLen, nil
	case wire.TypeStep:
		return 0, wire.StepLen, nil
	case wire.TypeBlock:
		return 0, wire.BlockHead + len(l.Blocks), nil
	case wire.TypeCold, wire.TypePull, wire.TypeRows, wire.TypeFind, wire.TypeFound, wire.TypeColdAt, wire.TypeSums:
	default:
		return 0, 0, fmt.Errorf("libra: no body is defined for %v", l.Header.Type)
	}
	if l.Dim < 1 || l.Dim > maxUint16 {
		return 0, 0, fmt.Errorf("libra: %v of dimension %d, not in 1..%d", l.Header.Type, l.Dim, maxUint16)
	}
	keys, numbers, floats := l.Header.Type.Body()
	if l.Header.Type == wire.TypeSums {
		if keys, floats = true, true; !l.sumsFit() {
			return 0, 0, fmt.Errorf("libra: %v whose keys are not in order, or too far from the first key to encode in %d bytes", l.Header.Type, l.Sums.Width)
		}
	}
	switch {
	case keys:
		count = len(l.Keys)
	case numbers:
		count = len(l.Numbers)
	default:
		count = len(l.Values) / l.Dim
	}
	if count < 1 || count > maxUint16 {
		return 0, 0, fmt.Errorf("libra: %v of %d rows, not 1..%d", l.Header.Type, count, maxUint16)
	}
	if l.isCoded() {
		if count > wire.MaxCoded/l.Dim || len(l.Codes) == 0 {
			return 0, 0, fmt.Errorf("libra: coded %v of %d rows of dimension %d in %d bytes, not 1..%d values in 1 or more",
				l.Header.Type, count, l.Dim, len(l.Codes), wire.MaxCoded)
		}
		return count, wire.CodedLen(l.Header.Type, count, len(l.Codes)), nil
	}
	if floats && len(l.Values) != count*l.Dim {
		return 0, 0, fmt.Errorf("libra: %v of %d rows of dimension %d contains %d values", l.Header.Type, count, l.Dim,
			len(l.Values))
	}
	switch l.Header.Type {
	case wire.TypeCold:
		n = wire.ColdLen(count, l.Dim)
	case wire.TypePull, wire.TypeFind:
		n = wire.PullLen(count)
	case wire.TypeRows:
		n = wire.RowsLen(count, l.Dim)
	case wire.TypeFound:
		n = wire.FoundLen(count)
	case wire.TypeColdAt:
		n = wire.ColdAtLen(count, l.Dim)
	case wire.TypeSums:
		n = wire.SumsLen(count, l.Dim, l.Sums.Width)
	}
	return count, n, nil
}

// sumsFit reports whether the width is enough for the differences of the keys.
func (l *Libra) sumsFit() bool {
	w := l.Sums.Width
	return w >= 1 && w <= wire.SumsWidthMax && slices.IsSorted(l.Keys) &&
		(len(l.Keys) == 0 || (l.Keys[len(l.Keys)-1]-l.Keys[0])>>(8*w) == 0)
}

const maxUint16 = 1<<16 - 1
