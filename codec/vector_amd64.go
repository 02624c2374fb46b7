// SPDX-License-Identifier: Apache-2.0

package codec

import "golang.org/x/sys/cpu"

//go:generate go run -C _asm . -out ../avx2_amd64.s -stubs ../avx2_amd64.go -pkg codec

var hasAVX2 = cpu.X86.HasAVX2

func (c *Codec) encode(out []byte, values []float32) int {
	if hasAVX2 {
		return c.encodeAVX2(out, values)
	}
	return c.encodePlain(out, values)
}

// decode leaves what is wrong to the plain decoder, which says where.
func (c *Codec) decode(values []float32, coded []byte) error {
	v, n := 0, 0
	if hasAVX2 {
		v, n = c.decodeAVX2(values, coded)
	}
	return c.decodePlain(values, v, coded, n)
}

func (c *Codec) encodeAVX2(out []byte, values []float32) (n int) {
	if groups := len(values) / Group; groups > 0 {
		n = encodeGroups(&out[0], &values[0], groups, &c.constants)
		values = values[groups*Group:]
	}
	if len(values) > 0 { // zeros behind them do not change the codes
		var group [Group]float32
		var codes [maxGroup]byte
		copy(group[:], values)
		n += copy(out[n:], codes[:encodeGroups(&codes[0], &group[0], 1, &c.constants)])
	}
	return n
}

// decodeAVX2 decodes as many values as it can, all if nothing is wrong, and returns how many and
// the length of their codes.
func (c *Codec) decodeAVX2(values []float32, coded []byte) (v, n int) {
	// Groups, as long as the longest of them cannot end beyond the codes.
	if groups := min(len(values)/Group, len(coded)); groups > 0 {
		done, read := decodeGroups(&values[0], &coded[0], len(coded)-maxGroup, groups, &c.constants)
		v, n = done*Group, read
	}
	rest := len(coded) - n
	if v == len(values) || rest == 0 || rest >= maxGroup {
		return v, n
	}

	// What is left gets bytes behind it which may be read.
	var tail [2 * maxGroup]byte
	copy(tail[:], coded[n:])
	w, m := v, 0
	if groups := (len(values) - v) / Group; groups > 0 {
		done, read := decodeGroups(&values[v], &tail[0], rest-1, groups, &c.constants)
		if read > rest {
			return v, n
		}
		w, m = v+done*Group, read
	}
	if last := values[w:]; 0 < len(last) && len(last) < Group && m < rest && endsAt(tail[m:rest], len(last)) {
		var group [Group]float32
		if done, read := decodeGroups(&group[0], &tail[m], 0, 1, &c.constants); done == 1 && m+read <= rest {
			w, m = w+copy(last, group[:]), m+read
		}
	}
	return w, n + m
}

// endsAt reports whether a group has no burst and no tag beyond its number of values. Codes that
// are cut short are checked elsewhere.
func endsAt(coded []byte, values int) bool {
	marks := coded[0]
	if marks&beyond(values) != 0 {
		return false
	}
	n := 1
	for ; values > 0; values -= Burst {
		if marks&0x80 != 0 {
			if n+2 > len(coded) {
				return false
			}
			tags := uint16(coded[n])<<8 | uint16(coded[n+1])
			if tags&(0xffff>>(2*values)) != 0 {
				return false
			}
			n += 2 + codesLen(tags)
		}
		marks <<= 1
	}
	return true
}
