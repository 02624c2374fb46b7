// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/transport/ring"
	"github.com/libra-ina/libra/wire"
)

// ringAdder adds around a ring.
type ringAdder []*ring.Ring

func openRing(ctx context.Context, bed *testbed.Bed, workers, values int, with codec.Config) (a ringAdder, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	var all []wire.Endpoint
	for _, h := range bed.Hosts()[:workers] {
		all = append(all, wire.Endpoint{MAC: [6]byte(h.MAC), IP: h.IP, Port: wire.DefaultPort})
	}
	for place := range workers {
		l, err := openLink(bed, place)
		if err != nil {
			return a, err
		}
		r, err := ring.New(ctx, ring.Config{
			Link: l, Workers: all, Place: place, Job: jobID, Epoch: 1, Values: values, Codec: with, Limit: waitLimit,
			Ended: ctx.Err,
		})
		if err != nil {
			return a, errors.Join(err, l.Close())
		}
		a = append(a, r)
	}
	return a, nil
}

func (a ringAdder) add(_ context.Context, worker int, vector []float32) error {
	return a[worker].Reduce(vector)
}

func (a ringAdder) sent(context.Context) (bytes, frames, repeated uint64, err error) {
	for _, r := range a {
		s := r.Stats()
		bytes, frames, repeated = bytes+s.SentBytes, frames+s.Sent, repeated+s.Window.Retransmitted
	}
	return bytes, frames, repeated, nil
}

func (a ringAdder) close() error {
	var group errgroup.Group
	for _, r := range a {
		group.Go(r.Close)
	}
	return group.Wait()
}

// rowDim is the number of values of a row of the server.
const rowDim = 64

// serverAdder adds through a parameter server: workers push rows, and pull their sums when all have
// pushed.
type serverAdder struct {
	server  *transport.Server
	sums    *sums
	workers []*transport.Worker
	keys    []uint64
	vectors [][]float32 // by worker: with a last row that is whole
	pushed  meeting
	pulled  meeting
}

func openServer(ctx context.Context, bed *testbed.Bed, workers, values int,
	with codec.Config) (_ *serverAdder, err error) {
	rows := (values + rowDim - 1) / rowDim
	a := &serverAdder{
		sums: &sums{values: make([]float32, rows*rowDim)}, keys: make([]uint64, rows),
		pushed: newMeeting(workers), pulled: newMeeting(workers),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	for i := range a.keys {
		a.keys[i] = uint64(i)
	}
	l, err := openLink(bed, workers)
	if err != nil {
		return nil, err
	}
	at := l.Local()
	if a.server, err = transport.NewServer(transport.ServerConfig{
		Link: l, Job: jobID, Dim: rowDim, Handler: a.sums, Codec: with,
	}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	for id := range workers {
		l, err := openLink(bed, id)
		if err != nil {
			return nil, err
		}
		if err := a.server.Admit(ctx, uint16(id), l.Local().AddrPort(), 1); err != nil {
			return nil, errors.Join(err, l.Close())
		}
		w, err := transport.NewWorker(ctx, transport.WorkerConfig{
			Link: l, Job: jobID, Sender: uint16(id), ServerEpoch: 1, Dim: rowDim, Codec: with, Server: at,
			Flow: retransmit.Config{Silence: waitLimit},
		})
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		a.workers, a.vectors = append(a.workers, w), append(a.vectors, make([]float32, rows*rowDim))
	}
	return a, nil
}

func (a *serverAdder) add(ctx context.Context, worker int, vector []float32) error {
	w, whole := a.workers[worker], a.vectors[worker]
	copy(whole, vector)
	if _, err := w.Push(ctx, a.keys, whole); err != nil {
		return err
	}
	if err := w.Flush(ctx); err != nil {
		return err
	}
	if err := a.pushed.wait(ctx, nil); err != nil {
		return err
	}
	if err := w.Pull(ctx, a.keys, whole); err != nil {
		return err
	}
	copy(vector, whole)
	return a.pulled.wait(ctx, a.sums.clear)
}

func (a *serverAdder) sent(ctx context.Context) (bytes, frames, repeated uint64, err error) {
	for _, w := range a.workers {
		s, err := w.Stats(ctx)
		if err != nil {
			return 0, 0, 0, err
		}
		bytes, frames, repeated = bytes+s.BytesCold, frames+s.Cold.Sent, repeated+s.Cold.Retransmitted
	}
	return bytes, frames, repeated, nil
}

func (a *serverAdder) close() error {
	var errs []error
	for _, w := range a.workers {
		errs = append(errs, w.Close())
	}
	if a.server != nil {
		errs = append(errs, a.server.Close())
	}
	return errors.Join(errs...)
}

// meeting lets workers wait for each other, again and again.
type meeting struct {
	workers int
	mu      *sync.Mutex
	here    *int
	all     *chan struct{}
}

func newMeeting(workers int) meeting {
	all := make(chan struct{})
	return meeting{workers: workers, mu: new(sync.Mutex), here: new(int), all: &all}
}

// wait returns when all workers have called it. The last one calls do first.
func (m meeting) wait(ctx context.Context, do func()) error {
	m.mu.Lock()
	all := *m.all
	if *m.here++; *m.here == m.workers {
		if do != nil {
			do()
		}
		*m.here, *m.all = 0, make(chan struct{})
		close(all)
	}
	m.mu.Unlock()
	select {
	case <-all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(waitLimit):
		return errors.New("other workers have not come")
	}
}

// sums is the store of the server: key k has the values from 64 k on.
type sums struct {
	mu     sync.Mutex
	values []float32
	row    [rowDim]float32
}

func (s *sums) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.values)
}

func (s *sums) Accumulate(rows wire.Rows) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range rows.Count {
		rows.Row(i, s.row[:])
		to := s.values[rows.Key(i)*rowDim:][:rowDim]
		for k, v := range s.row {
			to[k] += v
		}
	}
	return nil
}

func (s *sums) Read(keys []uint64, dst []float32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range keys {
		copy(dst[i*rowDim:][:rowDim], s.values[key*rowDim:])
	}
}

func (s *sums) AccumulateAt(wire.Rows) error { return wire.Refusal{Code: wire.CodeNumbering} }

func (s *sums) Find(_ []uint64, numbers []uint32) uint32 {
	clear(numbers)
	return 0
}
