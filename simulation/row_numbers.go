// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// preparedBatch is a batch whose keys a caller pushes repeatedly.
type preparedBatch struct {
	*transport.Prepared
	keys []uint64
}

// pushPrepared pushes a prepared batch, which it may create, or requests the row numbers of one.
func (c *caller) pushPrepared() bool {
	l := c.life.ledger
	if c.rng.IntN(4) >= len(c.prepared) {
		var keys []uint64
		for range 1 + c.rng.IntN(c.life.plan.rows) {
			keys = append(keys, l.keys[c.rng.IntN(len(l.keys))])
		}
		if b, ok := c.prepareBatch(keys); b == nil {
			return ok
		}
	}
	b := c.prepared[c.rng.IntN(len(c.prepared))]
	if c.rng.IntN(8) == 0 {
		return c.locateBatch(b)
	}
	if l.grads.next+len(b.keys)*l.dim >= maxGrads {
		return true
	}
	return c.pushBatch(b, c.rng.IntN(3) == 0)
}

// prepareBatch prepares a batch. It returns nil if that fails, and whether the life goes on.
func (c *caller) prepareBatch(keys []uint64) (b *preparedBatch, ok bool) {
	c.beginCall("Prepare")
	prepared, err := c.session.w.Prepare(keys)
	if !c.hasReturned(err) {
		return nil, false
	}
	if err != nil {
		return nil, c.session.isExcused("a preparation", err)
	}
	b = &preparedBatch{prepared, keys}
	c.prepared = append(c.prepared, b)
	return b, true
}

// locateBatch requests the row numbers of a batch.
func (c *caller) locateBatch(b *preparedBatch) bool {
	err := b.Locate(c.beginCall("Locate"))
	if !c.hasReturned(err) {
		return false
	}
	return err == nil || c.session.isExcused("a search for row numbers", err)
}

// pushBatch pushes a prepared batch with new gradients.
func (c *caller) pushBatch(b *preparedBatch, queued bool) bool {
	l := c.life.ledger
	p := &push{session: c.session, from: l.grads.next, most: -1, queued: queued}
	var grads []float32
	for _, key := range b.keys {
		grads = c.drawGradients(p, grads, l.index[key])
	}
	c.recordPush(p)
	var ticket *transport.Ticket
	var err error
	if p.queued {
		c.beginCall("Prepared.PushLater")
		ticket, err = b.PushLater(context.Background(), grads)
	} else {
		ticket, err = b.Push(c.beginCall("Prepared.Push"), grads)
	}
	if !c.hasReturned(err) {
		return false
	}
	if err != nil {
		return c.session.judgePush(p, err)
	}
	p.ticket, p.accepted = ticket, true
	c.tickets = append(c.tickets, p)
	return true
}

// rowNumber is a number in a server's numbering.
type rowNumber struct {
	at                *world.Host
	numbering, number uint32
}

// recordNumbers records row numbers of the server.
func (l *ledger) recordNumbers(f *frame, answer []byte) {
	asked, err := wire.ParseRows(f.payload, wire.TypeFind)
	told, failed := wire.ParseRows(answer, wire.TypeFound)
	if err != nil || failed != nil || asked.Count != told.Count {
		l.life.Fail("row numbers answer frame %d of sender %d, which asks for others: %v, %v",
			f.id.seq, f.id.sender, err, failed)
		return
	}
	for i := range told.Count {
		at, n := l.index[asked.Key(i)], rowNumber{f.id.to, told.Numbering, told.Number(i)}
		if n.number == 0 {
			continue
		}
		if other, ok := l.numbers[n]; ok && other != at {
			l.life.Fail("keys %d and %d have the same row number %d", l.keys[other], l.keys[at], n.number)
		}
		l.numbers[n] = at
	}
}

// rowOf returns the row of a COLD or COLD_AT frame.
func (l *ledger) rowOf(f *frame, t wire.Type, rows wire.Rows, i int) (at int, ok bool) {
	if t == wire.TypeCold {
		at, ok = l.index[rows.Key(i)]
		return at, ok
	}
	f.numbering = rows.Numbering
	if at, ok = l.numbers[rowNumber{f.id.to, rows.Numbering, rows.Number(i)}]; !ok {
		l.life.Fail("frame %d of sender %d names row %d, of which the server has told nothing",
			f.id.seq, f.id.sender, rows.Number(i))
	}
	return at, ok
}

// refuseNumbers records that a frame is refused because of its numbering: its content is sent
// again.
func (l *ledger) refuseNumbers(f *frame) {
	f.refused = true
	for _, n := range f.grads {
		l.grads.gradientAt(int(n)).again = true
	}
}

// hasOutlived reports whether a refused frame was followed by the frame that replaces it in the
// receiver's filter: it was answered long ago, but covers and answers take it for applied.
func (l *ledger) hasOutlived(f *frame) bool {
	id := f.id
	id.seq += 2 * wire.DefaultWindow
	return (f.refused || f.denied != 0) && l.frames.frameAt(id) != nil
}

// wasRenamed reports whether other frames applied a frame's content, because it was refused for its
// numbering.
func (f *frame) wasRenamed() bool {
	return f.refused && !slices.ContainsFunc(f.grads, func(n int32) bool {
		return f.push.session.of.life.ledger.grads.gradientAt(int(n)).applied == 0
	})
}

// restoreStore replaces the store by one that begins with its checkpoint, as a restarted server
// does. Its rows are in a different order. The open step is empty.
func (v *server) restoreStore() {
	var file bytes.Buffer
	err := v.store.WriteCheckpoint(&file, nil)
	if err == nil {
		v.store, _, err = ps.ReadCheckpoint(bytes.NewReader(backwards(file.Bytes(), v.life.plan.dim)), v.store.Config())
	}
	if err != nil {
		v.life.Fail("a checkpoint of the store: %v", err)
	}
	v.life.result.Renumbers++
}

// backwards reverses the rows of a checkpoint: see docs/checkpoint.md.
func backwards(file []byte, dim int) []byte {
	const head = 72
	n := 8 + 4*dim
	out := slices.Clone(file[:head])
	for at := len(file) - 4 - n; at >= head; at -= n {
		out = append(out, file[at:][:n]...)
	}
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, crc32.MakeTable(crc32.Castagnoli)))
}
