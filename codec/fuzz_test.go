// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

func fuzzed(t *testing.T, bound, scale uint8) *Codec {
	return made(t, Config{Bound: 1 + int(bound%14), Scale: max(MinScale, min(MaxScale, int(int8(scale))))})
}

// FuzzDecode gives both decoders anything. What they accept, decoded, coded and decoded again, is
// the same: codes that are not minimal become minimal.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x80, 0x80, 0, 0x20, 0}, uint16(1), uint8(9), uint8(0))
	f.Add(make([]byte, 3), uint16(130), uint8(5), uint8(126))
	f.Add(bytes.Repeat([]byte{0xff}, 300), uint16(64), uint8(0), uint8(130))
	c := made(f, Config{Bound: 10})
	f.Add(c.Plain().Append(nil, gradients(1, 300, 0.8, 0.02)), uint16(300), uint8(9), uint8(0))
	f.Fuzz(func(t *testing.T, coded []byte, n uint16, bound, scale uint8) {
		c := fuzzed(t, bound, scale)
		count := int(n) % 1000
		if checkCodes(t, c, count, coded) != nil {
			return
		}
		values := make([]float32, count)
		if err := c.Decode(values, coded); err != nil {
			t.Fatal(err)
		}
		checkValues(t, c, values, &buffers{})
	})
}

// FuzzAppend codes any values.
func FuzzAppend(f *testing.F) {
	f.Add([]byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3e}, uint8(9), uint8(0))
	f.Add(bytes.Repeat([]byte{1, 2, 3, 0xbc}, 70), uint8(13), uint8(130))
	f.Fuzz(func(t *testing.T, data []byte, bound, scale uint8) {
		var values []float32
		for ; len(data) >= 4; data = data[4:] {
			values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(data)))
		}
		checkValues(t, fuzzed(t, bound, scale), values, &buffers{})
	})
}
