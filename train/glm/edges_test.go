// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/libra-ina/libra/train/data"
)

// Keys of 64 bits come to worker 0 whole, whoever holds their columns.
func TestWideKeys(t *testing.T) {
	src := &table{}
	keys := []uint64{1, 1 << 31, 1<<31 + 1, 1 << 32, 1<<32 + 1, 1<<63 + 5, 1<<64 - 1}
	for _, key := range keys {
		src.rows = append(src.rows, data.Sample{Label: 1, Keys: []uint64{key}, Values: []float32{1}})
	}
	cfg := Config{Objective: Square, Bits: 1, Batch: 1, MicroBatch: 1, Epochs: 1, LearningRate: 0.5}
	for _, workers := range []int{1, 3} {
		_, m := mustTrain(t, src, cfg, workers)
		var got []uint64
		for _, c := range m.columns {
			got = append(got, c.key)
		}
		if !slices.Equal(got, keys) {
			t.Errorf("%d workers: keys %x, want %x", workers, got, keys)
		}
	}
}

// Progress is told after each mini-batch, and ends with all rows of all epochs. Between two
// mini-batches no column is left to be updated.
func TestProgress(t *testing.T) {
	rows, err := Load(t.Context(), gisette(10, 3), 1, 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	var told []Progress
	cfg := Config{Bits: 4, Batch: 4, MicroBatch: 2, Epochs: 2, LearningRate: 1e-3}
	done, err := Worker{
		Config: cfg, Rows: rows, Workers: 1, Sums: &end{adder: newAdder(1)}, Width: 2, InFlight: 2,
		Progress: func(p Progress) { told = append(told, p) },
	}.Train(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, samples := range []uint64{4, 8, 10, 14, 18, 20} {
		if i >= len(told) {
			t.Fatalf("told %d times", len(told))
		}
		want := Progress{Epoch: i / 3, Samples: samples, Total: 20, Loss: told[i].Loss}
		if told[i] != want || told[i].Loss <= 0 {
			t.Errorf("%d: %+v, want %+v", i, told[i], want)
		}
	}
	if last := told[len(told)-1]; len(told) != 6 || last.Loss != done.Epochs[1].Loss {
		t.Errorf("%d times, at last %+v, the epoch's loss is %v", len(told), last, done.Epochs[1].Loss)
	}
	if n := len(done.trainer.touched); n != 0 {
		t.Errorf("%d columns are left to be updated", n)
	}
}

// failing is a worker's end whose Poll fails after some calls.
type failing struct {
	*end
	after int
	why   error
}

func (f *failing) Poll() error {
	if f.after--; f.after < 0 {
		return f.why
	}
	return f.end.Poll()
}

// What a look for frames finds ends the training, in forward passes and in backward ones. The look
// comes when pollEvery features have passed, and not before.
func TestPollFails(t *testing.T) {
	why := errors.New("the switch has gone")
	rows, err := Load(t.Context(), &table{rows: []data.Sample{{Label: 1, Keys: []uint64{1}, Values: []float32{1}}}}, 1, 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	for after := range 3 {
		f := &failing{&end{adder: newAdder(1)}, after, why}
		w := Worker{Config: Config{Bits: 4, Batch: 1, MicroBatch: 1, Epochs: 1, LearningRate: 1}, Rows: rows, Workers: 1, Sums: f, Width: 1, InFlight: 1}
		tr := &trainer{Worker: w, weights: make([]int64, 1), gradient: make([]int64, 1), partial: make([]int32, 1),
			sums: make([]int32, 1), ops: make([]uint64, 1), most: 1 << 30}
		tr.polled = pollEvery - 1 // one feature is missing
		forward := tr.forward([]uint32{0})
		tr.polled = pollEvery - 1
		backward := tr.backward([]uint32{0})
		if (forward != nil) != (after < 1) || (backward != nil) != (after < 2) {
			t.Errorf("a failure after %d looks: %v, %v", after, forward, backward)
		}
		for _, err := range []error{forward, backward} {
			if err != nil && !errors.Is(err, why) {
				t.Error(err)
			}
		}
		tr.polled = pollEvery - 2
		if err := tr.poll(1); err != nil || tr.polled != pollEvery-1 {
			t.Errorf("%v after %d features", err, tr.polled)
		}
	}
}

// A training whose context has ended before it begins trains nothing.
func TestEndedBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := trainAll(ctx, func() data.Source { return gisette(2, 2) }, Defaults(), 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
