// SPDX-License-Identifier: Apache-2.0

package codec

// The paper's layout (§VI-A): bursts of tags and codes, those of zeros too. Its Algorithm 2 differs
// by a constant, see New.

func (c *Codec) encodePaper(out []byte, values []float32) (n int) {
	for len(values) > 0 {
		burst := values[:min(Burst, len(values))]
		values = values[len(burst):]
		n, _ = c.encodeBurst(out, n, burst)
	}
	return n
}

func (c *Codec) decodePaper(values []float32, coded []byte) error {
	n := 0
	for v := 0; v < len(values); v += Burst {
		burst := values[v:min(v+Burst, len(values))]
		tags, end, err := readTags(coded, n, v, len(burst))
		if err != nil {
			return err
		}
		c.decodeBurst(burst, tags, coded[n+2:end])
		n = end
	}
	if n < len(coded) {
		return malformed(n, len(values), leftOver)
	}
	return nil
}
