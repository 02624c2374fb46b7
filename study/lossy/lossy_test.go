// SPDX-License-Identifier: Apache-2.0

package lossy

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/train/digits"
)

func drawn(rng *rand.Rand, workers, values int) (gradients [][]float32) {
	for range workers {
		g := make([]float32, values)
		for i := range g {
			g[i] = float32(rng.NormFloat64() * 0.02)
		}
		gradients = append(gradients, g)
	}
	return gradients
}

// TestExchangesLoseNothing exchanges several gradients by the schemes with error feedback: what was
// given is what came out, and what still waits.
func TestExchangesLoseNothing(t *testing.T) {
	for _, workers := range []int{2, 3, 4, 8} {
		for _, values := range []int{1, 5, 64, 1000} {
			rng := rand.New(rand.NewPCG(uint64(workers), uint64(values)))
			link, err := newCoded(codec.Config{Bound: 6})
			if err != nil {
				t.Fatal(err)
			}
			r, l := newRing(link, true, workers, values), newLargest(0.01, workers, values)
			for name, c := range map[string]struct {
				exchange exchange
				rests    [][]float32
			}{"ring": {r, r.rests}, "largest": {l, l.rests}} {
				given, got, sum := make([]float64, values), make([]float64, values), make([]float32, values)
				for range 5 {
					gradients := drawn(rng, workers, values)
					for _, g := range gradients {
						for i, v := range g {
							given[i] += float64(v)
						}
					}
					c.exchange.add(sum, gradients)
					for i, v := range sum {
						got[i] += float64(v)
					}
				}
				for i := range got {
					for _, rest := range c.rests {
						got[i] += float64(rest[i])
					}
					if math.Abs(got[i]-given[i]) > 1e-6*float64(workers) {
						t.Fatalf("%s of %d workers: value %d of %d: %g was given, %g is there", name, workers, i, values, given[i], got[i])
					}
				}
			}
		}
	}
}

// TestRing checks what a worker sends: all blocks but one, before and after they are whole.
func TestRing(t *testing.T) {
	const workers, values = 3, 1000
	gradients := drawn(rand.New(rand.NewPCG(1, 1)), workers, values)
	sum := make([]float32, values)
	bytes := newRing(floats{}, false, workers, values).add(sum, gradients)
	if want := 4.0 * values * 2 * (workers - 1) / workers; bytes != want {
		t.Errorf("%g bytes, want %g", bytes, want)
	}
	for i, v := range sum {
		if want := gradients[0][i] + gradients[1][i] + gradients[2][i]; math.Abs(float64(v-want)) > 1e-7 {
			t.Fatalf("sum %d is %g, want %g", i, v, want)
		}
	}
	lost, kept := make([]float32, values), make([]float32, values)
	link, err := newCoded(codec.Config{Bound: 6})
	if err != nil {
		t.Fatal(err)
	}
	short := newRing(link, false, workers, values).add(lost, gradients)
	first := newRing(link, true, workers, values).add(kept, gradients)
	if short != first || !slices.Equal(lost, kept) {
		t.Error("the first exchange has nothing to feed back, but differs")
	}
	if short >= bytes/4 {
		t.Errorf("codes take %g bytes, floats %g", short, bytes)
	}
	for i, v := range lost {
		if math.Abs(float64(v-sum[i])) >= workers*0x1p-6 {
			t.Fatalf("sum %d is %g in codes, %g in floats", i, v, sum[i])
		}
	}
}

func TestBlocksAreTheVector(t *testing.T) {
	for _, values := range []int{0, 1, 63, 64, 65, 1000, 648_010} {
		for _, blocks := range []int{1, 2, 3, 7, 64} {
			end := 0
			for b := range blocks {
				from, to := blockOf(b, blocks, values)
				if from != end || to < from || from%codec.Group != 0 && from != values {
					t.Fatalf("%d values in %d: block %d is %d to %d after %d", values, blocks, b, from, to, end)
				}
				end = to
			}
			if end != values {
				t.Fatalf("%d values in %d blocks end at %d", values, blocks, end)
			}
		}
	}
}

func TestLeastOfLargest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		values := make([]float32, 1+rng.IntN(60))
		for i := range values {
			values[i] = float32(rng.IntN(9)-4) / 4 // many are equal
			if rng.IntN(2) == 0 {
				values[i] *= float32(rng.NormFloat64())
			}
		}
		sorted := slices.SortedFunc(slices.Values(values), func(a, b float32) int { return cmp.Compare(magnitudeOf(b), magnitudeOf(a)) })
		count := 1 + rng.IntN(len(values))
		least, larger := leastOfLargest(values, count)
		want := magnitudeOf(sorted[count-1])
		above := slices.IndexFunc(sorted, func(v float32) bool { return magnitudeOf(v) == want })
		if least != want || larger != above {
			t.Fatalf("%d of %v: %#x with %d larger, want %#x with %d", count, values, least, larger, want, above)
		}
	}
}

// TestLargestSendsItsCount also where many are as large as the least of them.
func TestLargestSendsItsCount(t *testing.T) {
	l := newLargest(0.25, 1, 8)
	sum := make([]float32, 8)
	bytes := l.add(sum, [][]float32{{1, -1, 1, 3, 0, 1, 1, 1}})
	if want := []float32{1, 0, 0, 3, 0, 0, 0, 0}; !slices.Equal(sum, want) || bytes != 0 {
		t.Errorf("%v with %g bytes", sum, bytes)
	}
	if want := []float32{0, -1, 1, 0, 0, 1, 1, 1}; !slices.Equal(l.rests[0], want) {
		t.Errorf("%v waits", l.rests[0])
	}
	if bytes := newLargest(0.25, 3, 8).add(sum, drawn(rand.New(rand.NewPCG(1, 1)), 3, 8)); bytes != 2*2*8 {
		t.Errorf("%g bytes to two others, of two values with places", bytes)
	}
}

func TestLinks(t *testing.T) {
	values := []float32{1.5, -0.3, 1e-20, 0, -1.27}
	for _, c := range []struct {
		link  link
		bytes int
		most  float64 // error
	}{{floats{}, 20, 0}, {truncated{16}, 10, 0x1p-7}, {truncated{22}, 7, 0.5}, {truncated{24}, 5, 1}, {scaled{}, 9, 1.5 / 254}} {
		block := slices.Clone(values)
		if bytes := c.link.send(block); bytes != c.bytes {
			t.Errorf("%T: %d bytes, want %d", c.link, bytes, c.bytes)
		}
		for i, v := range block {
			if e := math.Abs(float64(v - values[i])); e > c.most*1.0001 || c.most > 0 && i == 1 && e == 0 {
				t.Errorf("%T: %g becomes %g", c.link, values[i], v)
			}
		}
	}
	zeros := make([]float32, 5)
	if (scaled{}).send(zeros); !slices.Equal(zeros, make([]float32, 5)) {
		t.Errorf("zeros become %v", zeros)
	}
}

// written writes images of 28 × 28 whose label is the place of a bright row.
func written(t *testing.T, count int) (images, labels string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	pixels, names := []byte{0, 0, 8, 3}, []byte{0, 0, 8, 1}
	for _, extent := range []int{count, 28, 28} {
		pixels = binary.BigEndian.AppendUint32(pixels, uint32(extent))
	}
	names = binary.BigEndian.AppendUint32(names, uint32(count))
	for range count {
		label := rng.IntN(10)
		for p := range 28 * 28 {
			v := rng.IntN(60)
			if p/56 == label {
				v += 180
			}
			pixels = append(pixels, byte(v))
		}
		names = append(names, byte(label))
	}
	dir := t.TempDir()
	images, labels = filepath.Join(dir, "images"), filepath.Join(dir, "labels")
	if err := errors.Join(os.WriteFile(images, pixels, 0o600), os.WriteFile(labels, names, 0o600)); err != nil {
		t.Fatal(err)
	}
	return images, labels
}

func small(t *testing.T) Config {
	c := Defaults()
	c.Images, c.Labels = written(t, 120)
	c.Train, c.Test, c.Epochs, c.Seeds, c.Workers, c.Batch, c.Rate = 80, 40, 2, 1, 2, 10, 0.02
	c.Schemes = []string{Lossless, CodedName(10), "2^-10 as printed", "top 1 %"}
	return c
}

func TestStudy(t *testing.T) {
	c := small(t)
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != len(c.Schemes) || len(r.Lengths) != len(Bounds) || len(r.Targets) != 1 || r.Weights != 648_010 {
		t.Fatalf("%+v", r)
	}
	for i, res := range r.Results {
		if res.Scheme != c.Schemes[i] || len(res.Accuracy) != c.Epochs || !(res.Final.Mean > 0.5) || res.Final.Min > res.Final.Mean || res.Final.Max < res.Final.Mean {
			t.Errorf("%+v", res)
		}
		if (i == 0) != (res.Ratio == 1 && res.Points == 0 && res.Scheme == Lossless) && res.Ratio < 2 {
			t.Errorf("%s takes %g bytes, a ratio of %g", res.Scheme, res.Bytes, res.Ratio)
		}
	}
	for _, l := range r.Lengths {
		if sum := l.Shares[0] + l.Shares[1] + l.Shares[2] + l.Shares[3]; math.Abs(sum-1) > 1e-9 || l.Ratio < 2 || l.Ratio > 16 {
			t.Errorf("%+v", l)
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := json.Marshal(again); err != nil || !slices.Equal(text, other) {
		t.Errorf("the same configuration has another report: %v\n%s", err, gocmp.Diff(string(text), string(other)))
	}
	var out strings.Builder
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2^-10 as printed", "Table III", "92.00", "648,010 weights", "percentage points of accuracy below"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("tables do not contain %q:\n%s", want, out.String())
		}
	}
	if charts := r.Charts(); len(charts) != 2 || len(charts[0].Series) != len(c.Schemes) || len(charts[1].Series[1].Points) != c.Epochs {
		t.Errorf("%+v", charts)
	}
}

// TestPaperRatios computes the ratios beside Table III.
func TestPaperRatios(t *testing.T) {
	for bound, want := range map[int]float64{10: 11.6, 8: 13.2, 6: 14.6} {
		if got := ratioOf(paperShares[bound]); math.Abs(got-want) > 0.05 {
			t.Errorf("2^-%d: %g, want %g", bound, got, want)
		}
	}
}

// blank writes an IDX file of zeros with a shape.
func blank(t *testing.T, shape ...int) string {
	b, size := []byte{0, 0, 8, byte(len(shape))}, 1
	for _, extent := range shape {
		b, size = binary.BigEndian.AppendUint32(b, uint32(extent)), size*extent
	}
	name := filepath.Join(t.TempDir(), "blank")
	if err := os.WriteFile(name, append(b, make([]byte, size)...), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestStudyRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		is     error
		want   string
	}{
		"scheme":  {func(c *Config) { c.Schemes = []string{"gzip"} }, experiment.ErrConfig, "gzip"},
		"twice":   {func(c *Config) { c.Schemes = append(c.Schemes, c.Schemes[0]) }, experiment.ErrConfig, "is there twice: give it once"},
		"workers": {func(c *Config) { c.Workers = 1 }, experiment.ErrConfig, "workers"},
		"rate":    {func(c *Config) { c.Rate = math.NaN() }, experiment.ErrConfig, "rate"},
		"images":  {func(c *Config) { c.Images = c.Labels }, digits.ErrFormat, "give images"},
		"missing": {func(c *Config) { c.Images += "2" }, os.ErrNotExist, "give an IDX file"},
		"folder":  {func(c *Config) { c.Labels = t.TempDir() }, file.ErrNotRegular, "give an IDX file"},
		"shape":   {func(c *Config) { c.Images = blank(t, 120, 14, 56) }, digits.ErrFormat, "images of 14 × 56 bytes, not 28 × 28"},
		"few":     {func(c *Config) { c.Test = 41 }, nil, "too few for 80 to train on and 41 to test with"},
		"step":    {func(c *Config) { c.Batch = 41 }, nil, "no step of 2 workers"},
	} {
		given := small(t)
		c.change(&given)
		if _, err := Run(t.Context(), given); err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInterruptedStudy(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	c := small(t)
	stop := errors.New("stop")
	c.Progress = func(done, _ int, _ string) {
		if done == c.Epochs {
			cancel(stop)
		}
	}
	r, err := Run(ctx, c)
	if !errors.Is(err, stop) || len(r.Results) != 1 || r.Results[0].Scheme != Lossless {
		t.Errorf("%+v, %v", r, err)
	}
}
