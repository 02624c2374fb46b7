// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/libra-ina/libra/link"
)

// detainer is a link whose next Wake returns only after a function has.
type detainer struct {
	link.Link
	next atomic.Pointer[func()]
}

func (d *detainer) Wake() {
	d.Link.Wake()
	if fn := d.next.Swap(nil); fn != nil {
		(*fn)()
	}
}

// TestResultBeatsTheEnd detains callers until their call has its result and the worker has ended.
// They get the result, which is more specific than the end.
func TestResultBeatsTheEnd(t *testing.T) {
	ctx := deadline(t)
	keys, grads := []uint64{1 << 40}, make([]float32, testDim)
	for name, call := range map[string]func(*Worker) error{
		"Push": func(w *Worker) error {
			_, err := w.Push(ctx, keys, grads)
			return err
		},
		"Pull":  func(w *Worker) error { return w.Pull(ctx, keys, make([]float32, testDim)) },
		"Flush": func(w *Worker) error { return w.Flush(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			for range 30 { // the choice between a result and the end was random
				var d *detainer
				s := &scope{TB: t}
				c := newCluster(s, memFabric(s, clusterOptions{}), clusterOptions{workers: 1, tamper: func(cfg *WorkerConfig) {
					d = &detainer{Link: cfg.Link}
					cfg.Link = d
				}})
				w := c.workers[0]
				end := func() {
					settled(ctx, t, w)
					if err := w.Close(); err != nil {
						t.Error(err)
					}
				}
				d.next.Store(&end)
				if err := call(w); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				s.close()
				if t.Failed() {
					return
				}
			}
		})
	}
}

// settled returns when a worker has completed all earlier submissions.
func settled(ctx context.Context, t *testing.T, w *Worker) {
	t.Helper()
	for idle := 0; idle < 2; { // twice, because a turn that runs a function continues after it
		err := w.Do(ctx, func() {
			idle++
			for _, o := range w.ops {
				if o != nil {
					idle = 0
				}
			}
		})
		if err != nil {
			t.Error(err)
			return
		}
	}
}
