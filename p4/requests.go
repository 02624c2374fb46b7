// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	rt "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/libra-ina/libra/wire"
)

// The control plane reads and clears slots with packets into the pipeline: a request names an
// operation and a row of the registers, and the response carries the row as it was before. Requests
// pass the pipeline after all earlier frames, so a row that is read after a swap misses none of the
// frames of its bank. All operations are idempotent, so a request without a response is repeated. A
// copy that is still in flight when its response arrives would clear what is added later, so the
// call waits for it.
const (
	operationRead   = 0
	operationClear  = 1
	operationForget = 2 // the scale of a job, whose number replaces the row's

	// outstanding is the number of requests without a response.
	outstanding = 64
	// impatience is the time without a response after which a request is repeated.
	impatience = 200 * time.Millisecond

	valueLen = 8 // of a slot in a response
	rowLen   = wire.Lanes * valueLen
)

// row is the slots of one row, by lane.
type row [wire.Lanes]int64

// responses passes the switch's responses to the waiting calls.
type responses struct {
	in packet

	mu      sync.Mutex
	waiting chan response // nil without a waiting call
}

type response struct {
	operation uint64
	number    uint64
	row       row
}

// takePacket is called with every packet from the switch.
func (r *responses) takePacket(p *rt.PacketIn) {
	if len(p.Payload) < rowLen || len(p.Metadata) == 0 {
		return // the program sends nothing else
	}
	v := r.in.metadataValues(p.Metadata)
	answer := response{operation: v[0].toUint64(), number: v[1].toUint64()}
	for j := range answer.row {
		answer.row[j] = int64(binary.BigEndian.Uint64(p.Payload[j*valueLen:]))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		return
	}
	select {
	case r.waiting <- answer:
	default: // a surplus copy
	}
}

// rows applies an operation to n rows from the first on and calls use once with each of them. The
// caller ensures that there is one call at a time.
//
// When it returns without an error, no request that changes a row is in flight: requests are
// answered in order, so none that was sent earlier follows the answer to a read, and no earlier
// answer to the same request follows those that were awaited.
func (p *Plane) rows(operation uint64, first, n int, use func(i int, r *row)) error {
	if operation == operationRead {
		return p.askRows(operation, first, n, use)
	}
	if err := p.askRows(operation, first, n, use); err != nil {
		p.unsettled = true
		return err
	}
	if !p.unsettled {
		return nil
	}
	err := p.askRows(operationRead, first, 1, func(int, *row) {})
	p.unsettled = err != nil
	return err
}

func (p *Plane) askRows(operation uint64, first, n int, use func(i int, r *row)) error {
	waiting := make(chan response, 4*outstanding)
	p.responses.setReceiver(waiting)
	defer p.responses.setReceiver(nil)

	sent := make(map[int]time.Time) // outstanding, by row from 0 on
	next, done := 0, 0
	deadline := time.Now().Add(patience)
	timer := time.NewTimer(impatience)
	defer timer.Stop()
	for done < n {
		for ; next < n && len(sent) < outstanding; next++ {
			if err := p.request(operation, first+next); err != nil {
				return err
			}
			sent[next] = time.Now()
		}
		timer.Reset(impatience)
		select {
		case a := <-waiting:
			i := int(a.number) - first
			if _, ours := sent[i]; !ours || a.operation != operation {
				continue
			}
			delete(sent, i)
			use(i, &a.row)
			done++
			deadline = time.Now().Add(patience)
		case <-timer.C:
			if time.Now().After(deadline) {
				return fmt.Errorf("p4: %w at %s: %d of %d rows of slots did not come within %v: check that it has a CPU port (--cpu-port 510 of bmv2)",
					ErrUnreachable, p.client.target, n-done, n, patience)
			}
		}
		for i, at := range sent {
			if time.Since(at) < impatience {
				continue
			}
			p.unsettled = p.unsettled || operation != operationRead
			if err := p.request(operation, first+i); err != nil {
				return err
			}
			sent[i] = time.Now()
		}
	}
	return nil
}

func (r *responses) setReceiver(waiting chan response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = waiting
}

func (p *Plane) request(operation uint64, number int) error {
	return p.client.sendPackets(&rt.PacketOut{
		Metadata: p.names.out.metadataList(uintNumber(operation), uintNumber(uint64(number))),
		// The program does not read the payload, but some targets require one.
		Payload: make([]byte, 16),
	})
}
