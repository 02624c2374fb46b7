// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package codec

func (c *Codec) encode(out []byte, values []float32) int { return c.encodePlain(out, values) }

func (c *Codec) decode(values []float32, coded []byte) error {
	return c.decodePlain(values, 0, coded, 0)
}
