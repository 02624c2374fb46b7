// SPDX-License-Identifier: Apache-2.0

// The command _asm writes the AVX2 code of package codec: `go generate ./codec`. The code of a
// value is in the high bytes of its lane of 32 bits, so that signs need no shift and a shuffle by
// the tags of four lanes packs or unpacks their codes.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Of the package: see the constants in codec.go.
const (
	scaleUp = iota
	tagOne
	tagTwo
	unitOne
	unitTwo
	inverseOne
	inverseTwo
	scaleDown

	burst   = 8
	bursts  = 8 // of a group
	tagged3 = 3
)

// absent makes a shuffle write a zero.
const absent = 0x80

func main() {
	lengths, packing, unpacking := tables()
	encodeGroups(lengths, packing)
	decodeGroups(lengths, unpacking)
	Generate()
}

// tables writes what the tags of four values select: the bytes of their codes, the shuffle that
// packs them, and its inverse.
func tables() (lengths, packing, unpacking Mem) {
	var length [256]byte
	var pack, unpack [256][16]byte
	for tags := range 256 {
		for i := range 16 {
			pack[tags][i], unpack[tags][i] = absent, absent
		}
		n := 0
		for lane := range 4 {
			size := 1 << (tags >> (6 - 2*lane) & 3) / 2
			for b := range size { // big-endian, from the lane's high byte down
				pack[tags][n] = byte(4*lane + 3 - b)
				unpack[tags][4*lane+3-b] = byte(n)
				n++
			}
		}
		length[tags] = byte(n)
	}
	flat := func(t [256][16]byte) (all []byte) {
		for _, row := range t {
			all = append(all, row[:]...)
		}
		return all
	}
	return data("lengths", length[:]), data("packing", flat(pack)), data("unpacking", flat(unpack))
}

func data(name string, bytes []byte) Mem {
	m := GLOBL(name, RODATA|NOPTR)
	for i := 0; i < len(bytes); i += 8 {
		var v uint64
		for j := range 8 {
			v |= uint64(bytes[i+j]) << (8 * j)
		}
		DATA(i, U64(v))
	}
	return m
}

// lanes is a constant of eight 32-bit lanes.
func lanes(name string, v [8]uint32) Mem {
	m := GLOBL(name, RODATA|NOPTR)
	for i, x := range v {
		DATA(4*i, U32(x))
	}
	return m
}

func broadcast(constants Register, index int) VecVirtual {
	v := YMM()
	VBROADCASTSS(Mem{Base: constants, Disp: 4 * index}, v)
	return v
}

func address(m Mem) GPVirtual {
	r := GP64()
	LEAQ(m, r)
	return r
}

func all(v uint32) [8]uint32 { return [8]uint32{v, v, v, v, v, v, v, v} }

func encodeGroups(lengths, packing Mem) {
	// From masks of words, the tags of four lanes, the first on top, as the signs of eight bytes.
	gather := GLOBL("gather", RODATA|NOPTR)
	for half := range 2 {
		DATA(16*half, U64(0x02_00_06_04_0a_08_0e_0c))
		DATA(16*half+8, U64(0x80_80_80_80_80_80_80_80))
	}
	one := lanes("one", all(0x3f800000))
	signs := lanes("signs", all(1<<31))

	TEXT("encodeGroups", NOSPLIT, "func(dst *byte, values *float32, groups int, c *[8]float32) (n int)")
	Doc("encodeGroups codes groups of 64 values and returns the length. dst has room for 273 bytes a group.")
	Pragma("noescape")
	dst, values := Load(Param("dst"), GP64()), Load(Param("values"), GP64())
	groups, constants := Load(Param("groups"), GP64()), Load(Param("c"), GP64())
	up, low, middle := broadcast(constants, scaleUp), broadcast(constants, tagOne), broadcast(constants, tagTwo)
	unit1, unit2 := broadcast(constants, unitOne), broadcast(constants, unitTwo)
	top, sign, order := YMM(), YMM(), YMM()
	VMOVUPS(one, top)
	VMOVUPS(signs, sign)
	VMOVDQU(gather, order)
	pack, length := address(packing), address(lengths)
	none := GP64()
	XORQ(none, none)

	Label("group")
	at, marks, left := GP64(), GP32(), GP64()
	MOVQ(dst, at)
	INCQ(dst)
	XORL(marks, marks)
	MOVQ(U32(bursts), left)

	Label("burst")
	x, m := YMM(), YMM()
	VMOVUPS(Mem{Base: values}, x)
	VANDNPS(x, sign, m)
	VMULPS(up, m, m)

	// Which lanes have at least tag 1, 2, 3: not less, so NaN has.
	const notLess = 0x15
	is1, is2, is3 := YMM(), YMM(), YMM()
	VCMPPS(U8(notLess), low, m, is1)
	VCMPPS(U8(notLess), middle, m, is2)
	VCMPPS(U8(notLess), top, m, is3)
	odd, tags := YMM(), GP32()
	VXORPS(is1, is2, odd)
	VXORPS(is3, odd, odd)
	VPBLENDW(U8(0xaa), is2, odd, odd) // the tag's high bit is in odd words
	VPSHUFB(order, odd, odd)
	VPMOVMSKB(odd, tags)
	tags1, tags2 := GP64(), GP64()
	MOVBLZX(tags.As8L(), tags1.As32())
	MOVL(tags, tags2.As32())
	SHRL(U8(16), tags2.As32())

	// Cut. Lanes with tag 3 overflow, and are not used.
	unit, s := YMM(), YMM()
	VBLENDVPS(is2, unit2, unit1, unit)
	VMULPS(unit, m, m)
	VCVTTPS2DQ(m, m)
	VANDPS(x, sign, s)
	VORPS(s, m, m)
	VBLENDVPS(is3, x, m, m)

	// Tags and codes are written even if the next burst takes their place.
	MOVB(tags1.As8L(), Mem{Base: dst})
	MOVB(tags2.As8L(), Mem{Base: dst, Disp: 1})
	n, n2 := GP64(), GP64()
	MOVBLZX(Mem{Base: length, Index: tags1, Scale: 1}, n.As32())
	MOVBLZX(Mem{Base: length, Index: tags2, Scale: 1}, n2.As32())
	low4, high4 := XMM(), XMM()
	VEXTRACTI128(U8(1), m, high4)
	SHLQ(U8(4), tags1)
	VPSHUFB(Mem{Base: pack, Index: tags1, Scale: 1}, m.AsX(), low4)
	VMOVDQU(low4, Mem{Base: dst, Disp: 2})
	SHLQ(U8(4), tags2)
	VPSHUFB(Mem{Base: pack, Index: tags2, Scale: 1}, high4, high4)
	VMOVDQU(high4, Mem{Base: dst, Index: n, Scale: 1, Disp: 2})
	LEAQ(Mem{Base: n, Index: n2, Scale: 1, Disp: 2}, n)
	NEGL(tags) // sets the carry unless all tags are 0
	CMOVQEQ(none, n)
	ADCL(marks, marks)
	ADDQ(n, dst)
	ADDQ(U8(4*burst), values)
	DECQ(left)
	JNZ(LabelRef("burst"))

	MOVB(marks.As8L(), Mem{Base: at})
	DECQ(groups)
	JNZ(LabelRef("group"))
	SUBQ(Load(Param("dst"), GP64()), dst)
	Store(dst, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

func decodeGroups(lengths, unpacking Mem) {
	shifts := lanes("shifts", [8]uint32{6, 4, 2, 0, 14, 12, 10, 8})
	raw := lanes("raw", [8]uint32{tagged3: 1<<32 - 1, 4 + tagged3: 1<<32 - 1})
	magnitudes := lanes("magnitudes", all(1<<31-1))

	TEXT("decodeGroups", NOSPLIT,
		"func(values *float32, src *byte, last int, groups int, c *[8]float32) (done int, read int)")
	Doc("decodeGroups decodes groups of 64 values and returns how many and their length. It stops where a group would",
		"begin after src[last], or has a burst that is marked and all tag 0. src has at least last+273 bytes.")
	Pragma("noescape")
	values, src := Load(Param("values"), GP64()), Load(Param("src"), GP64())
	limit := Load(Param("last"), GP64())
	groups, constants := Load(Param("groups"), GP64()), Load(Param("c"), GP64())
	ADDQ(src, limit)

	// By tag: 0, inverseOne, inverseTwo, and what is not used.
	inverse, inverse2, down := YMM(), YMM(), broadcast(constants, scaleDown)
	VXORPS(inverse, inverse, inverse)
	VBROADCASTSS(Mem{Base: constants, Disp: 4 * inverseOne}, inverse2)
	VBLENDPS(U8(0x22), inverse2, inverse, inverse)
	VBROADCASTSS(Mem{Base: constants, Disp: 4 * inverseTwo}, inverse2)
	VBLENDPS(U8(0x44), inverse2, inverse, inverse)
	isRaw, magnitude, shift, zero := YMM(), YMM(), YMM(), YMM()
	VMOVUPS(raw, isRaw)
	VMOVUPS(magnitudes, magnitude)
	VMOVDQU(shifts, shift)
	VXORPS(zero, zero, zero)
	unpack, length := address(unpacking), address(lengths)
	end := GP64() // of the last whole group
	MOVQ(src, end)

	Label("next")
	CMPQ(src, limit)
	JGT(LabelRef("stop"))
	marks := GP32()
	MOVBLZX(Mem{Base: src}, marks)
	INCQ(src)
	for i := range bursts {
		VMOVUPS(zero, Mem{Base: values, Disp: 4 * burst * i})
	}
	TESTL(marks, marks)
	JZ(LabelRef("whole"))

	Label("marked")
	tags, tags1, tags2 := GP32(), GP64(), GP64()
	MOVWLZX(Mem{Base: src}, tags)
	TESTL(tags, tags)
	JZ(LabelRef("stop"))
	tag := YMM()
	VMOVD(tags, tag.AsX())
	MOVBLZX(tags.As8L(), tags1.As32())
	MOVL(tags, tags2.As32())
	SHRL(U8(8), tags2.As32())
	n, n2 := GP64(), GP64()
	MOVBLZX(Mem{Base: length, Index: tags1, Scale: 1}, n.As32())
	MOVBLZX(Mem{Base: length, Index: tags2, Scale: 1}, n2.As32())
	SHLQ(U8(4), tags1)
	SHLQ(U8(4), tags2)

	code, rows := YMM(), YMM()
	VMOVDQU(Mem{Base: src, Disp: 2}, code.AsX())
	VINSERTI128(U8(1), Mem{Base: src, Index: n, Scale: 1, Disp: 2}, code, code)
	VMOVDQU(Mem{Base: unpack, Index: tags1, Scale: 1}, rows.AsX())
	VINSERTI128(U8(1), Mem{Base: unpack, Index: tags2, Scale: 1}, rows, rows)
	VPSHUFB(rows, code, code)
	ADDQ(n2, n)
	LEAQ(Mem{Base: src, Index: n, Scale: 1, Disp: 2}, src)

	factor, m, s := YMM(), YMM(), YMM()
	VPBROADCASTD(tag.AsX(), tag)
	VPSRLVD(shift, tag, tag)
	VPERMILPS(tag, inverse, factor) // by the two low bits
	VPERMILPS(tag, isRaw, tag)
	VANDPS(code, magnitude, m)
	VANDNPS(code, magnitude, s)
	VCVTDQ2PS(m, m)
	VMULPS(factor, m, m)
	VMULPS(down, m, m)
	VORPS(s, m, m)
	VBLENDVPS(tag, code, m, m)
	bit, to := GP32(), GP64()
	BSRL(marks, bit)
	BTRL(bit, marks)
	SHLL(U8(5), bit)
	LEAQ(Mem{Base: values, Disp: 4 * burst * (bursts - 1)}, to)
	SUBQ(bit.As64(), to)
	VMOVUPS(m, Mem{Base: to})
	TESTL(marks, marks)
	JNZ(LabelRef("marked"))

	Label("whole")
	MOVQ(src, end)
	ADDQ(U32(4*burst*bursts), values)
	DECQ(groups)
	JNZ(LabelRef("next"))

	Label("stop")
	done := Load(Param("groups"), GP64())
	SUBQ(groups, done)
	Store(done, Return("done"))
	SUBQ(Load(Param("src"), GP64()), end)
	Store(end, Return("read"))
	VZEROUPPER()
	RET()
}
