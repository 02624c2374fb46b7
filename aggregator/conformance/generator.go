package conformance

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Generator makes random frames for the jobs and senders of [Setup]: mostly
// valid ones, repetitions, and frames that are wrong in every way that a
// receiver must notice. The same seed makes the same frames.
type Generator struct {
	rng   *rand.Rand
	flows map[flow]*history
	buf   [4096]byte
}

type flow struct{ job, sender int }

// history remembers payloads, to repeat them.
type history struct {
	next     uint32
	payloads [][]byte
}

const remembered = 64

// NewGenerator returns a generator of the frames that belong to a seed.
func NewGenerator(seed uint64) *Generator {
	return &Generator{rng: rand.New(rand.NewPCG(seed, 0)), flows: make(map[flow]*history)}
}

// Restart forgets the sequence numbers of one of Jobs, after it was restarted.
func (g *Generator) Restart(job int) {
	for i := range Senders {
		delete(g.flows, flow{job, i})
	}
}

func (g *Generator) oneIn(n int) bool { return g.rng.IntN(n) == 0 }

// Frame returns the next frame. It is valid until the next call.
func (g *Generator) Frame() []byte {
	f := flow{g.rng.IntN(len(Jobs)), g.rng.IntN(Senders)}
	payload := g.payload(f)
	src, dst := Host(f.sender), Aggregator
	if g.oneIn(8) {
		payload = g.spoil(payload)
	}
	if g.oneIn(20) {
		src, dst = g.readdress(src, dst)
	}
	frame := g.seal(src, dst, payload)
	if g.oneIn(8) {
		frame = g.tag(frame)
	}
	if g.oneIn(10) {
		frame = g.damage(frame)
	}
	return frame
}

// Valid returns the next new frame of a sender to one of Jobs, without
// anything wrong. It is valid until the next call.
func (g *Generator) Valid(job, sender int) []byte {
	f := flow{job, sender}
	h := g.history(f)
	p := g.hot(f, h.next)
	h.next++
	return g.seal(Host(sender), Aggregator, p)
}

func (g *Generator) history(f flow) *history {
	h := g.flows[f]
	if h == nil {
		h = &history{next: wire.FirstSeq}
		g.flows[f] = h
	}
	return h
}

// payload returns a valid payload of a flow: a new one or a repetition.
func (g *Generator) payload(f flow) []byte {
	h := g.history(f)
	if len(h.payloads) > 0 && g.oneIn(6) {
		p := h.payloads[g.rng.IntN(len(h.payloads))]
		if g.oneIn(2) {
			wire.MarkRetx(p)
		}
		return p
	}
	switch {
	case g.oneIn(50): // lost frames, up to two windows
		h.next += g.rng.Uint32N(2 * 2 * wire.DefaultWindow)
	case g.oneIn(5000): // far ahead: the numbers wrap in time
		h.next += g.rng.Uint32N(1 << 31)
	}
	p := g.hot(f, h.next)
	h.next++
	if len(h.payloads) < remembered {
		h.payloads = append(h.payloads, p)
	} else {
		h.payloads[g.rng.IntN(remembered)] = p
	}
	return p
}

// hot returns a new HOT payload that its job takes, except that sums may
// overflow.
func (g *Generator) hot(f flow, seq uint32) []byte {
	job, err := Jobs[f.job].Complete()
	if err != nil {
		panic(err) // Jobs is a table of this package
	}
	h := wire.Header{Type: wire.TypeHot, Job: job.ID, Sender: senderID(f.sender), Epoch: job.Epoch, Seq: seq}
	dense := job.Layouts&aggregator.Dense != 0 && (job.Layouts == aggregator.Dense || g.oneIn(2))
	if dense {
		h.Flags |= wire.FlagDense
	}
	if job.Mode == aggregator.FetchAdd && g.oneIn(2) {
		h.Flags |= wire.FlagWantSum
	}
	n := 1 + g.rng.IntN(job.MaxStripes)
	if g.oneIn(3) {
		n = job.MaxStripes
	}
	payload := make([]byte, wire.HotLen(n))
	h.Put(payload)
	magnitude := g.magnitude(job.Exp)
	few := g.oneIn(10) // few ranks, many times
	for i := range n {
		s := wire.StripeAt(payload, i)
		mask := uint32(wire.LaneMask)
		if g.oneIn(3) {
			mask &= g.rng.Uint32()
		}
		s.SetMask(mask)
		for lane := range wire.Lanes {
			if mask>>lane&1 == 0 && !g.oneIn(4) {
				continue // unused lanes are zero, but need not be
			}
			slots := job.Slots
			if few {
				slots = min(slots, 40)
			}
			rank := g.rng.IntN(slots)
			if dense {
				s.SetSlot(lane, uint16(rank))
			} else {
				rank = g.rng.IntN((slots-lane-1)/wire.Lanes+1)*wire.Lanes + lane
				s.SetSlot(lane, uint16(rank/wire.Lanes))
			}
			s.SetValue(lane, magnitude*float32(g.rng.NormFloat64()))
		}
	}
	return payload
}

// magnitude returns how large the values of a frame are: mostly gradients, and
// now and then values that vanish, or whose sums overflow.
func (g *Generator) magnitude(exp int) float32 {
	switch g.rng.IntN(12) {
	case 0:
		return float32(math.Ldexp(1, exp+g.rng.IntN(66)-3))
	case 1:
		return float32(math.Ldexp(1, exp+60))
	case 2:
		return math.SmallestNonzeroFloat32
	}
	return float32(math.Ldexp(1, exp+30))
}

// odd floats: every class, and the neighbours of the limits.
var oddBits = []uint32{
	0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x7f7fffff, 0xff7fffff,
	0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x80800000, 0x3f800000,
}

// spoil returns a copy of a payload that is wrong in one place, mostly.
func (g *Generator) spoil(payload []byte) []byte {
	p := append([]byte(nil), payload...)
	stripes := (len(p) - wire.HeaderLen) / wire.StripeLen
	s := wire.StripeAt(p, g.rng.IntN(stripes))
	lane := g.rng.IntN(wire.Lanes)
	job := Jobs[g.rng.IntN(len(Jobs))]
	switch g.rng.IntN(14) {
	case 0:
		p[0] = byte(g.rng.Uint32())
	case 1:
		p[0] = p[0]&0xf0 | byte(g.rng.IntN(16))
	case 2:
		p[1] = byte(g.rng.Uint32())
	case 3:
		binary.BigEndian.PutUint16(p[2:], [...]uint16{1, 254, 256, 0xffff, job.ID}[g.rng.IntN(5)])
	case 4:
		binary.BigEndian.PutUint16(p[4:], uint16(g.rng.Uint32N(65536)))
	case 5:
		binary.BigEndian.PutUint16(p[4:], senderID(g.rng.IntN(Senders)))
	case 6:
		p[6+g.rng.IntN(2)] ^= 1 << g.rng.IntN(8)
	case 7:
		p = p[:g.rng.IntN(len(p)+1)]
	case 8:
		p = append(p, make([]byte, g.rng.IntN(300))...)
	case 9:
		s.SetMask(s.Mask() | 1<<(wire.Lanes+g.rng.IntN(32-wire.Lanes)))
	case 10:
		binary.BigEndian.PutUint32(s[4+4*lane:], oddBits[g.rng.IntN(len(oddBits))])
	case 11: // around the largest value of each job
		job, _ = job.Complete()
		limit := math.Float32bits(float32(math.Ldexp(1, 63+job.Exp)))
		binary.BigEndian.PutUint32(s[4+4*lane:], limit-2+g.rng.Uint32N(4)|g.rng.Uint32()&(1<<31))
	case 12: // around the last slot of each job
		s.SetSlot(lane, uint16(job.Slots-2+g.rng.IntN(4)))
		if g.oneIn(2) {
			s.SetSlot(lane, uint16(job.Slots/wire.Lanes-1+g.rng.IntN(3)))
		}
	case 13:
		s.SetSlot(lane, uint16(g.rng.Uint32N(65536)))
	}
	return p
}

// readdress changes who sends or receives.
func (g *Generator) readdress(src, dst wire.Endpoint) (_, _ wire.Endpoint) {
	switch g.rng.IntN(8) {
	case 0:
		src.MAC[g.rng.IntN(6)] ^= 1 << g.rng.IntN(8)
	case 1:
		src.IP = Host(g.rng.IntN(200)).IP
	case 2:
		src = Host(g.rng.IntN(Senders))
	case 3:
		src.Port = uint16(g.rng.Uint32N(65536))
	case 4:
		dst = Host(g.rng.IntN(4))
	case 5:
		dst.Port = uint16(g.rng.Uint32N(65536))
	case 6:
		dst.MAC = Host(g.rng.IntN(4)).MAC
	case 7:
		dst = Host(g.rng.IntN(4))
		src.IP, dst.IP = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	}
	return src, dst
}

// seal writes the frame of a payload into the generator's buffer.
func (g *Generator) seal(src, dst wire.Endpoint, payload []byte) []byte {
	e, err := wire.NewEnvelope(src, dst)
	if err != nil {
		panic(err) // readdress keeps the addresses' families the same
	}
	frame := g.buf[:e.Len()+len(payload)]
	copy(frame[e.Len():], payload)
	e.Seal(frame)
	return frame
}

// tag inserts a VLAN tag.
func (g *Generator) tag(frame []byte) []byte {
	frame = frame[:len(frame)+4]
	copy(frame[16:], frame[12:])
	binary.BigEndian.PutUint16(frame[12:], 0x8100)
	binary.BigEndian.PutUint16(frame[14:], uint16(g.rng.Uint32N(65536)))
	return frame
}

// damage changes a sealed frame without regard for its checksums. The headers
// come before offset 46.
func (g *Generator) damage(frame []byte) []byte {
	const headers = 46
	switch g.rng.IntN(8) {
	case 0, 1:
		frame[g.rng.IntN(min(headers, len(frame)))] ^= 1 << g.rng.IntN(8)
	case 2:
		frame[g.rng.IntN(min(headers, len(frame)))] = byte(g.rng.Uint32())
	case 3:
		frame[g.rng.IntN(len(frame))] ^= 1 << g.rng.IntN(8)
	case 4:
		frame = frame[:14+g.rng.IntN(len(frame)-13)]
	case 5: // padding
		n := len(frame) + g.rng.IntN(64)
		for i := len(frame); i < n; i++ {
			g.buf[i] = byte(g.rng.Uint32())
		}
		frame = g.buf[:n]
	case 6: // an IPv4 header field, and the checksum that belongs to it
		at := 14 + g.rng.IntN(20)
		if len(frame) >= 34 {
			frame[at] ^= 1 << g.rng.IntN(8)
			fixIPv4(frame)
		}
	case 7: // no UDP checksum, or the other zero
		if len(frame) >= 42 {
			binary.BigEndian.PutUint16(frame[40:], -uint16(g.rng.IntN(2)))
		}
	}
	return frame
}

// fixIPv4 computes the checksum of an untagged frame's IPv4 header.
func fixIPv4(frame []byte) {
	ip := frame[14:34]
	binary.BigEndian.PutUint16(ip[10:], 0)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
}
