// SPDX-License-Identifier: Apache-2.0

package agentproto

import "fmt"

// Op is the operation of an entry.
type Op uint8

// The operations.
const (
	Push     Op = 1
	Pull     Op = 2
	PushSums Op = 3
	Flush    Op = 4
	Barrier  Op = 5
	Prepare  Op = 6
	Release  Op = 7
	Stats    Op = 8
	Reduce   Op = 9
	Sums     Op = 10
	Harvest  Op = 11
)

var opNames = [...]string{
	Push: "push", Pull: "pull", PushSums: "push with sums", Flush: "flush", Barrier: "barrier", Prepare: "prepare",
	Release: "release", Stats: "statistics", Reduce: "reduce", Sums: "sums", Harvest: "harvest",
}

// String returns the operation's name.
func (o Op) String() string {
	if int(o) < len(opNames) && opNames[o] != "" {
		return opNames[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// HasRows reports whether entries of an operation have a dimension; if [Op.MayBeEmpty], only if N
// is not 0.
func (o Op) HasRows() bool { return uses[o].rows }

// MayBeEmpty reports whether entries of an operation may ask for no rows, and then have no
// dimension.
func (o Op) MayBeEmpty() bool { return o == Reduce || o == Harvest }

// Entry is a request. Offsets count from the beginning of the buffer area.
type Entry struct {
	Op     Op
	Dim    uint32
	Tag    uint64
	Batch  uint64
	Keys   uint64
	Values uint64
	Sums   uint64
	N      uint32
	Step   uint64
}

// Now is the step of a [Harvest] that does not wait for the end of the harvest period.
const Now = 1

// Put writes the entry.
func (e *Entry) Put(b *[EntryLen]byte) {
	*b = [EntryLen]byte{0: byte(e.Op)}
	order.PutUint32(b[4:], e.Dim)
	order.PutUint64(b[8:], e.Tag)
	order.PutUint64(b[16:], e.Batch)
	order.PutUint64(b[24:], e.Keys)
	order.PutUint64(b[32:], e.Values)
	order.PutUint64(b[40:], e.Sums)
	order.PutUint32(b[48:], e.N)
	order.PutUint64(b[56:], e.Step)
}

// fields are the fields that an operation uses.
type fields struct{ rows, batch, keys, sums, step, stats, now bool }

var uses = map[Op]fields{
	Push:     {rows: true, batch: true, keys: true},
	Pull:     {rows: true, batch: true, keys: true},
	PushSums: {rows: true, batch: true, keys: true, sums: true},
	Flush:    {},
	Barrier:  {step: true},
	Prepare:  {keys: true},
	Release:  {batch: true},
	Stats:    {stats: true},
	Reduce:   {rows: true, keys: true, step: true},
	Sums:     {rows: true, keys: true, step: true},
	Harvest:  {rows: true, keys: true, now: true},
}

// ParseEntry reads an entry and checks it against the page and the size of the buffer
// area, as far as a correct client can know them. The error wraps [BadEntry] and names the field.
func ParseEntry(b *[EntryLen]byte, bufferBytes uint64) (e Entry, err error) {
	e = Entry{
		Op: Op(b[0]), Dim: order.Uint32(b[4:]), Tag: order.Uint64(b[8:]), Batch: order.Uint64(b[16:]),
		Keys: order.Uint64(b[24:]), Values: order.Uint64(b[32:]), Sums: order.Uint64(b[40:]), N: order.Uint32(b[48:]),
		Step: order.Uint64(b[56:]),
	}
	use, known := uses[e.Op]
	bad := func(field string, value uint64) error {
		return fmt.Errorf("%w: operation %d, %s %d", BadEntry, e.Op, field, value)
	}
	switch {
	case !known:
		return e, fmt.Errorf("%w: unknown operation %d", BadEntry, e.Op)
	case !zero(b[1:4]) || !zero(b[52:56]):
		return e, fmt.Errorf("%w: operation %d, reserved bytes are not zero", BadEntry, e.Op)
	case !use.batch && e.Batch != 0:
		return e, bad("batch", e.Batch)
	case (!use.keys || e.Batch != 0) && e.Keys != 0:
		return e, bad("keys", e.Keys)
	case !use.rows && !use.stats && e.Values != 0:
		return e, bad("values", e.Values)
	case !use.sums && e.Sums != 0:
		return e, bad("sums", e.Sums)
	case !use.keys && e.N != 0:
		return e, bad("n", uint64(e.N))
	case !use.rows && e.Dim != 0:
		return e, bad("dim", uint64(e.Dim))
	case !use.step && e.Step != 0 && !(use.now && e.Step == Now):
		return e, bad("step", e.Step)
	}
	keyBytes := uint64(e.N) * 8
	valueBytes := uint64(e.N) * uint64(e.Dim) // scalars are below 2^64
	if valueBytes > bufferBytes/4 {
		return e, bad("n", uint64(e.N))
	}
	valueBytes *= 4
	if use.stats {
		valueBytes = StatsLen
	}
	switch {
	case use.keys && e.Batch == 0 && !inside(e.Keys, keyBytes, bufferBytes):
		return e, bad("keys", e.Keys)
	case (use.rows || use.stats) && !inside(e.Values, valueBytes, bufferBytes):
		return e, bad("values", e.Values)
	case use.sums && !inside(e.Sums, valueBytes, bufferBytes):
		return e, bad("sums", e.Sums)
	}
	return e, nil
}

// inside reports whether a place is aligned and in the buffer area.
func inside(at, length, size uint64) bool {
	return at%8 == 0 && at <= size && length <= size-at
}

// Completion is the answer to an entry.
type Completion struct {
	Tag      uint64
	Status   Code
	Op       Op
	Peer     Peer
	Refusal  uint16
	Ticket   uint64
	Detail   uint64
	Key      uint64
	KeyKnown bool

	// Frames of a failed push.
	Acknowledged, Refused, Unknown uint32
}

// PartyDetail is the Detail of [PartyGone]: who left, by the number that WELCOME gave, and the
// process.
func PartyDetail(client, pid uint32) uint64 { return uint64(pid)<<32 | uint64(client) }

// Party returns who left, if the status is [PartyGone].
func (c *Completion) Party() (client, pid uint32) { return uint32(c.Detail), uint32(c.Detail >> 32) }

// Peer is the other end that a failure concerns.
type Peer uint8

// The peers.
const (
	NoPeer Peer = iota
	Aggregator
	Server
)

// String names the peer.
func (p Peer) String() string {
	switch p {
	case Aggregator:
		return "aggregator"
	case Server:
		return "parameter server"
	}
	return "peer"
}

// Put writes the completion.
func (c *Completion) Put(b *[CompletionLen]byte) {
	*b = [CompletionLen]byte{12: byte(c.Op), 13: byte(c.Peer)}
	order.PutUint64(b[0:], c.Tag)
	order.PutUint32(b[8:], uint32(c.Status))
	order.PutUint16(b[14:], c.Refusal)
	order.PutUint64(b[16:], c.Ticket)
	order.PutUint64(b[24:], c.Detail)
	order.PutUint64(b[32:], c.Key)
	if c.KeyKnown {
		b[40] = 1
	}
	order.PutUint32(b[48:], c.Acknowledged)
	order.PutUint32(b[52:], c.Refused)
	order.PutUint32(b[56:], c.Unknown)
}

// ParseCompletion reads a completion.
func ParseCompletion(b *[CompletionLen]byte) Completion {
	return Completion{
		Tag: order.Uint64(b[0:]), Status: Code(order.Uint32(b[8:])), Op: Op(b[12]), Peer: Peer(b[13]),
		Refusal: order.Uint16(b[14:]), Ticket: order.Uint64(b[16:]), Detail: order.Uint64(b[24:]),
		Key: order.Uint64(b[32:]), KeyKnown: b[40] != 0,
		Acknowledged: order.Uint32(b[48:]), Refused: order.Uint32(b[52:]), Unknown: order.Uint32(b[56:]),
	}
}
