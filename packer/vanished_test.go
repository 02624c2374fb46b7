// SPDX-License-Identifier: Apache-2.0

package packer

import "testing"

// Gradients that the aggregator rounds to 0 are counted once for each batch, however it begins, and
// not again in the next.
func TestVanished(t *testing.T) {
	const exp = -10
	hot := mustHotSet(t, 1, 5, 6)
	p, err := New(Config{HotSet: hot, Numbers: Rounded(exp)})
	if err != nil {
		t.Fatal(err)
	}
	keys := []uint64{5, 6, 5}
	b, err := p.Prepare(keys)
	if err != nil {
		t.Fatal(err)
	}
	small := []float32{0x1p-12, 1, -0x1p-13} // half a unit is 2^-11
	for name, begin := range map[string]func(grads []float32) error{
		"keys":     func(grads []float32) error { return p.Begin(keys, grads) },
		"prepared": func(grads []float32) error { return p.BeginPrepared(grads, b) },
		"merged": func(grads []float32) error {
			return p.BeginPrepared(append([]float32{1, 1, 1}, grads...), b, b)
		},
		"added": func(grads []float32) error {
			_, err := p.BeginSum(exp, []Part{{Keys: keys, Grads: grads}, {Prepared: b, Grads: []float32{1, 1, 1}}})
			return err
		},
	} {
		for _, c := range []struct {
			grads []float32
			want  int
		}{{small, 2}, {[]float32{1, 0, 0x1p-11}, 0}, {small, 2}} {
			if err := begin(c.grads); err != nil {
				t.Fatal(err)
			}
			if got := p.Vanished(); got != c.want {
				t.Errorf("%s: %d of %v have vanished, want %d", name, got, c.grads, c.want)
			}
		}
	}
	if at := p.FirstVanished([]float32{1, 0, 0x1p-12}); at != 2 {
		t.Errorf("the first that has vanished is at %d, want 2", at)
	}
}
