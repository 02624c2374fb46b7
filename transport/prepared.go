// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"slices"

	"github.com/libra-ina/libra/packer"
)

// Prepared is a list of keys that a worker has looked up, for repeated pushes and pulls of the
// same keys. It is immutable: any number of goroutines may use it, and several of its pushes
// may be in flight.
//
// When a push of it is acknowledged, the worker asks the server for the numbers of the cold
// rows; pushes that begin later use these numbers instead of keys.
type Prepared struct {
	worker *Worker
	keys   []uint64
	places *packer.Prepared
}

// Prepare copies keys and looks them up in advance. Pushes of the result need no look-up, and
// its cold rows take less room in frames once their numbers are known.
//
// The result depends on the hot set and the layout of the worker's admission. After another
// admission, prepare the keys for the new worker; that costs about as much as a push of them.
// It holds 8 bytes for each key, about 6 for each hot gradient in dense frames (in lane-aligned
// ones 136 for each stripe), and 4 for each cold row, 8 with its number. Prepare does not
// wait for the worker's goroutine.
//
// The error is [packer.ErrShape] for more than 2^32-1 gradients, or why the worker has ended.
func (w *Worker) Prepare(keys []uint64) (*Prepared, error) {
	select {
	case <-w.Done():
		return nil, w.Err()
	default:
	}
	keys = slices.Clone(keys)
	places, err := w.packer.Prepare(keys)
	if err != nil {
		return nil, err
	}
	return &Prepared{worker: w, keys: keys, places: places}, nil
}

// Locate asks the server for the numbers of the cold rows and waits for them. It spares the
// first push its keys, if all of the rows were pushed before, by any worker: a row that was never
// pushed has no number, and then Locate changes nothing. The error is ctx's, why the worker has
// ended, or a refusal; after an error, pushes use keys.
func (p *Prepared) Locate(ctx context.Context) error {
	rows := p.places.ColdRows()
	if len(rows.Keys) == 0 {
		return nil
	}
	if err := p.worker.submitOperation(ctx, numbersSearch(rows)); !errors.Is(err, errNoNumbers) {
		return err
	}
	return nil
}

// Push is [Worker.Push] of the prepared keys.
func (p *Prepared) Push(ctx context.Context, grads []float32) (*Ticket, error) {
	return p.worker.push(ctx, &operation{keys: p.keys, values: grads, prepared: p.places})
}

// PushLater is [Worker.PushLater] of the prepared keys. Prepared batches share frames only with
// other prepared batches.
func (p *Prepared) PushLater(ctx context.Context, grads []float32) (*Ticket, error) {
	return p.worker.pushLater(ctx, &queued{operation: operation{keys: p.keys, values: grads, prepared: p.places}})
}

// Pull is [Worker.Pull] of the prepared keys.
func (p *Prepared) Pull(ctx context.Context, dst []float32) error {
	return p.worker.Pull(ctx, p.keys, dst)
}
