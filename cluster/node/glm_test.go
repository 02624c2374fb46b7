// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/glm"
	"github.com/libra-ina/libra/train/weights"
	"github.com/libra-ina/libra/transport/reducer"
)

// newRoundsCluster returns a cluster over UDP sockets without a server and a hot set, with a
// running switch.
func newRoundsCluster(t *testing.T, workers int) *cluster.Config {
	t.Helper()
	c := newCluster(t, workers)
	c.Server, c.Model, c.Data, c.Job = cluster.Server{}, cluster.Model{}, cluster.Data{}, cluster.Job{ID: 3}
	slices.Reverse(c.Workers) // their order means nothing
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.ReadAny(path)
	if err != nil {
		t.Fatal(err)
	}
	startSwitch(t, c)
	return c
}

// glmRows writes rows of 120 columns, dense or sparse, with values of any sign.
func glmRows(t *testing.T, rows int) string {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	var text strings.Builder
	for range rows {
		z := 0.0
		var pairs strings.Builder
		for c := range 120 {
			if v := r.NormFloat64(); c%10 == 0 || r.IntN(5) == 0 {
				fmt.Fprintf(&pairs, " %d:%.3f", c*77, v*float64(1+c))
				z += v * float64(c%7-3)
			}
		}
		label := 0
		if z > 0 {
			label = 1
		}
		fmt.Fprintf(&text, "%d%s\n", label, &pairs)
	}
	path := filepath.Join(t.TempDir(), "rows.libsvm")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var anyFaults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 3}

func glmOptions(data string) GLMOptions {
	training := glm.Defaults()
	training.Epochs = 2
	return GLMOptions{Training: training, Data: data}
}

// trainGLM runs all workers, each with its own options, and returns what the first has, and all
// errors.
func trainGLM(ctx context.Context, t *testing.T, c *cluster.Config, of func(id uint16) GLMOptions) (*GLMResult, map[uint16]error) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	var first *GLMResult
	errs := map[uint16]error{}
	for _, w := range c.Workers {
		all.Go(func() {
			o := of(w.ID)
			o.ID = w.ID
			result, err := RunGLM(ctx, Env{Config: c, Log: testLog(t).With("process", w.ID)}, o)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs[w.ID] = err
			case (result.Model != nil) != (w.ID == 1):
				errs[w.ID] = fmt.Errorf("model %+v", result.Model)
			case w.ID == 1:
				first = result
			}
		})
	}
	all.Wait()
	return first, errs
}

// The weights have the same bits with 1, 2, 4 and 8 workers, micro-batches of 8 and 64, in both
// modes, and with lost, doubled and overtaken frames.
func TestGLMWeightsDependOnNoNetwork(t *testing.T) {
	path := glmRows(t, 150)
	var want string
	for _, workers := range []int{1, 2, 4, 8} {
		c := newRoundsCluster(t, workers)
		for _, micro := range []int{8, 64} {
			for _, with := range []struct {
				acked  bool
				faults cluster.Faults
			}{{}, {faults: anyFaults}, {acked: true, faults: anyFaults}} {
				if workers > 1 && micro == 64 && !with.faults.Any() {
					continue // cheaper
				}
				c.Faults = with.faults
				o := glmOptions(path)
				o.Training.MicroBatch, o.Acked = micro, with.acked
				o.Out, o.Format = filepath.Join(t.TempDir(), "weights.csv"), "csv"
				r, errs := trainGLM(soon(t), t, c, func(uint16) GLMOptions { return o })
				if len(errs) > 0 {
					t.Fatalf("%d workers, micro-batches of %d, %+v: %v", workers, micro, with, errs)
				}
				if want == "" {
					want = r.Model.WeightsSHA256
				}
				if r.Model.WeightsSHA256 != want || r.Model.Columns != 120 || r.Rows != 150 || len(r.Epochs) != 2 || r.Epochs[1].Loss >= r.Epochs[0].Loss {
					t.Errorf("%d workers, micro-batches of %d, %+v: %+v, %+v, want %s", workers, micro, with, r, r.Model, want)
				}
				if w, err := weights.Load(o.Out); err != nil || w.Len() != 120 || w.Factors != 0 {
					t.Errorf("%+v, %v", w, err)
				}
			}
		}
	}
}

// Workers with other settings or other data are refused, with both.
func TestGLMWorkersAgree(t *testing.T) {
	t.Parallel()
	c := newRoundsCluster(t, 4)
	path, other := glmRows(t, 20), glmRows(t, 21)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var refused sync.WaitGroup
	refused.Add(3)
	go func() {
		refused.Wait()
		cancel() // the first waits for them
	}()
	var mu sync.Mutex
	errs := map[uint16]error{}
	var all sync.WaitGroup
	for id := range uint16(4) {
		all.Go(func() {
			o := glmOptions(path)
			switch o.ID = id + 1; o.ID {
			case 2:
				o.Training.Bits = 5
			case 3:
				o.Data = other
			case 4:
				o.Acked = true
			}
			_, err := RunGLM(ctx, Env{Config: c, Log: testLog(t)}, o)
			if o.ID > 1 {
				refused.Done()
			}
			mu.Lock()
			defer mu.Unlock()
			errs[o.ID] = err
		})
	}
	all.Wait()
	for id, wants := range map[uint16][]string{2: {"4 bits", "5 bits"}, 3: {"20 rows with digest", "21 rows with digest"}, 4: {"in mode acked"}} {
		for _, want := range append(wants, "start all workers with the same settings") {
			if err := errs[id]; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("worker %d: %v, want %q", id, err, want)
			}
		}
	}
}

// A worker that joins and then does nothing is named by all others within the limit, by the first
// too.
func TestGLMNamesDeadWorkers(t *testing.T) {
	t.Parallel()
	c := newRoundsCluster(t, 3)
	c.Silence = 3 * time.Second // on a busy machine a living worker may be silent for a second
	path := glmRows(t, 20)
	dead := slices.IndexFunc(c.Workers, func(w cluster.Worker) bool { return w.ID == 2 })
	victim := c.Workers[dead]
	o := glmOptions(path)
	o.ID = victim.ID
	shape, err := o.shape(c)
	if err != nil {
		t.Fatal(err)
	}
	rows, _, err := o.load(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	env := Env{Config: c, Log: testLog(t)}
	l, err := openLink(env, victim.Host, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	joined := make(chan *control.Rounds, 1)
	go func() {
		r, err := joinGLM(t.Context(), env, victim, shape, l.Local(), o.what(rows), startLimit)
		if err != nil {
			t.Error(err)
		}
		joined <- r
	}()
	others := *c
	errs := map[uint16]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, w := range c.Workers {
		if w.ID == victim.ID {
			continue
		}
		all.Go(func() {
			o := glmOptions(path)
			o.ID = w.ID
			_, err := RunGLM(soon(t), Env{Config: &others, Log: testLog(t)}, o)
			mu.Lock()
			defer mu.Unlock()
			errs[w.ID] = err
		})
	}
	all.Wait()
	if r := <-joined; r != nil {
		r.Leave()
	}
	for _, id := range []uint16{1, 3} {
		var missing *reducer.MissingError
		if !errors.As(errs[id], &missing) || !slices.Equal(missing.Missing, []uint16{2}) || missing.Waited > 2*c.Silence {
			t.Errorf("worker %d: %v", id, errs[id])
		}
	}
}

// Mistakes end a worker before it joins.
func TestGLMRefuses(t *testing.T) {
	c := newCluster(t, 2)
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("1 1:1\n3 1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*GLMOptions){
		"no worker 9": func(o *GLMOptions) { o.ID = 9 },
		"bits 9":      func(o *GLMOptions) { o.Training.Bits = 9 },
		"micro-batch 64: a frame of it has 3 stripes, and the switch takes 2 (switch.stripes): give at most 44": func(o *GLMOptions) { o.Training.MicroBatch = 64 },
		bad + `:2:1: label "3" is not 1, 0 or -1`: func(o *GLMOptions) { o.Data = bad },
		"no such file": func(o *GLMOptions) { o.Data = "/no/such/file" },
	} {
		few := *c
		few.Switch.Stripes = 2
		o := glmOptions("")
		o.ID = 1
		change(&o)
		if _, err := RunGLM(t.Context(), Env{Config: &few, Log: testLog(t)}, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	many := *c
	for id := range uint16(65) {
		many.Workers = append(many.Workers, cluster.Worker{ID: 100 + id})
	}
	o := glmOptions("")
	if _, err := o.shape(&many); err == nil || !strings.Contains(err.Error(), "67 workers") {
		t.Error(err)
	}
}

// Without a file the rows are synthetic, and have labels that suit the objective.
func TestGLMSyntheticRows(t *testing.T) {
	c := newCluster(t, 1)
	o := GLMOptions{ID: 1, Rows: 50, Training: glm.Defaults()}
	clicks, _, err := o.load(t.Context(), c)
	if err != nil || clicks.Len() != 50 {
		t.Fatal(clicks, err)
	}
	o.Training.Objective = glm.Square
	if numbers, _, err := o.load(t.Context(), c); err != nil || numbers.Digest() == clicks.Digest() || o.Training.Objective.Task() != data.Regression {
		t.Error(err)
	}
}

// A worker that is interrupted while it waits for others ends at once, with the reason, as do those
// that are.
func TestGLMInterrupted(t *testing.T) {
	c := newRoundsCluster(t, 2)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	o := glmOptions(glmRows(t, 100))
	o.Training.Epochs = 1 << 20
	var once sync.Once
	o.Progress = func(p glm.Progress) {
		if p.Epoch > 0 {
			once.Do(func() { cancel(why) })
		}
	}
	began := time.Now()
	_, errs := trainGLM(ctx, t, c, func(uint16) GLMOptions { return o })
	if !errors.Is(errs[1], why) || !errors.Is(errs[2], why) || time.Since(began) > c.Silence {
		t.Errorf("%v after %v", errs, time.Since(began))
	}
}
