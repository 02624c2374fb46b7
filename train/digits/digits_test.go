// SPDX-License-Identifier: Apache-2.0

package digits

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/test/realdata"
)

// blobs returns images of a label's own corner, with noise.
func blobs(count, pixels, labels int) (images []float32, of []uint8) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range count {
		label := rng.IntN(labels)
		for p := range pixels {
			v := 0.2 * rng.Float32()
			if p%labels == label {
				v += 0.8
			}
			images = append(images, v)
		}
		of = append(of, uint8(label))
	}
	return images, of
}

// TestGradientIsSlopeOfLoss compares gradients with differences of the loss.
func TestGradientIsSlopeOfLoss(t *testing.T) {
	n := New([]int{6, 5, 4, 3}, 7)
	images, labels := blobs(8, 6, 3)
	p := n.NewPass(8)
	gradient, unused := make([]float32, len(n.Weights)), make([]float32, len(n.Weights))
	loss := p.Gradient(gradient, images, labels)
	if !(loss > 0) {
		t.Fatalf("loss %g", loss)
	}
	const step, most = 1e-3, 1e-3
	cut := 0 // weights for which a rectifier begins or ends within a step, where the loss has no slope
	for i, w := range n.Weights {
		n.Weights[i] = w + step
		above := (p.Gradient(unused, images, labels) - loss) / step
		n.Weights[i] = w - step
		below := (loss - p.Gradient(unused, images, labels)) / step
		n.Weights[i] = w
		if math.Abs(above-below) > 2*most {
			cut++
		} else if slope := (above + below) / 2; math.Abs(slope-float64(gradient[i])) > most {
			t.Errorf("weight %d: gradient %g, but the loss changes by %g", i, gradient[i], slope)
		}
	}
	if cut > len(n.Weights)/10 {
		t.Errorf("%d of %d weights could not be compared", cut, len(n.Weights))
	}
}

// TestPassOfOtherBatches checks that neither smaller batches nor what was computed before change a
// gradient.
func TestPassOfOtherBatches(t *testing.T) {
	n := New([]int{6, 5, 3}, 7)
	images, labels := blobs(9, 6, 3)
	used, fresh := n.NewPass(9), n.NewPass(4)
	got, want := make([]float32, len(n.Weights)), make([]float32, len(n.Weights))
	used.Gradient(got, images, labels)
	used.Accuracy(images, labels)
	if l, m := used.Gradient(got, images[:24], labels[:4]), fresh.Gradient(want, images[:24], labels[:4]); l != m || !slices.Equal(got, want) {
		t.Errorf("loss %g and %v after a larger batch, %g and %v without", l, got, m, want)
	}
	if a, b := used.Accuracy(images, labels), fresh.Accuracy(images, labels); a != b {
		t.Errorf("accuracy %g at once, %g in parts", a, b)
	}
}

func TestTraining(t *testing.T) {
	n := New([]int{12, 8, 4}, 3)
	images, labels := blobs(200, 12, 4)
	p := n.NewPass(200)
	gradient := make([]float32, len(n.Weights))
	first := p.Gradient(gradient, images, labels)
	for range 60 {
		p.Gradient(gradient, images, labels)
		for i, g := range gradient {
			n.Weights[i] -= 0.5 * g
		}
	}
	if last := p.Gradient(gradient, images, labels); last > first/2 {
		t.Errorf("loss %g, then %g", first, last)
	}
	if a := p.Accuracy(images, labels); a < 0.99 {
		t.Errorf("%g of the images are recognised", a)
	}
	if !slices.Equal(New([]int{12, 8, 4}, 3).Weights, New([]int{12, 8, 4}, 3).Weights) || slices.Equal(New([]int{12, 8, 4}, 3).Weights, New([]int{12, 8, 4}, 4).Weights) {
		t.Error("a seed decides the weights, and another one others")
	}
}

// idx returns an IDX file.
func idx(values []byte, shape ...uint32) []byte {
	out := []byte{0, 0, unsignedBytes, byte(len(shape))}
	for _, extent := range shape {
		out = binary.BigEndian.AppendUint32(out, extent)
	}
	return append(out, values...)
}

func write(t *testing.T, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpen(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(idx([]byte{0, 255, 51, 102, 0, 0, 0, 255}, 2, 2, 2)); err != nil {
		t.Fatal(err)
	}
	z.Close()
	images, err := Open(write(t, zipped.Bytes()), write(t, idx([]byte{7, 1}, 2)))
	if err != nil {
		t.Fatal(err)
	}
	if images.Pixels != 4 || images.Len() != 2 || !slices.Equal(images.Values, []float32{0, 1, 0.2, 0.4, 0, 0, 0, 1}) {
		t.Errorf("%+v", images)
	}
	if last := images.Part(1, 1); last.Labels[0] != 1 || !slices.Equal(last.Values, []float32{0, 0, 0, 1}) {
		t.Errorf("the last is %+v", last)
	}
}

func TestOpenRefuses(t *testing.T) {
	images, labels := idx(make([]byte, 8), 2, 2, 2), idx([]byte{7, 1}, 2)
	broken := append([]byte{0x1f, 0x8b}, make([]byte, 20)...)
	for _, c := range []struct {
		images, labels []byte
		want           string
	}{
		{nil, labels, "no header"},
		{[]byte("label,pixel\n1,2\n"), labels, "begins with 6c 61 62 65"},
		{idx(nil)[:4], labels, "number of dimensions"},
		{images[:11], labels, "header is cut short"},
		{images[:20], labels, "ends before its 8 values"},
		{append(slices.Clone(images), 1), labels, "goes on after its 8 values"},
		{idx(nil, 1<<31, 2, 2), labels, "too large"},
		{idx(nil, 0, 1<<31, 1<<31), labels, "too large"},
		{idx(nil, 0, 28, 28), labels, "shape [0 28 28]"},
		{labels, labels, "shape [2]: give images"},
		{images, images, "shape [2 2 2]: give labels"},
		{images, idx([]byte{7, 1, 3}, 3), "2 images, but"},
		{broken, labels, "gzip"},
	} {
		_, err := Open(write(t, c.images), write(t, c.labels))
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.want, err)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), write(t, labels)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestRealDigits(t *testing.T) {
	images, err := Open(realdata.Path(t, "t10k-images.gz"), realdata.Path(t, "t10k-labels.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if images.Len() != 10_000 || images.Pixels != 28*28 || slices.Max(images.Labels) != 9 || slices.Max(images.Values) != 1 {
		t.Errorf("%d images of %d pixels", images.Len(), images.Pixels)
	}
}
