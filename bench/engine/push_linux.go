// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// bare is package afxdp alone against the aggregator: the frames of the
// pushes are written before the test; only their numbers change.
type bare struct {
	libra
	seq    uint32 // number of the next frame
	acked  uint32 // the newest frame that asked for an answer and got it
	silent int    // waits in a row without an acknowledgement
}

// askEvery is how often a frame asks for an answer, as package transport's worker does.
const askEvery = 16

// openProgram also writes the frames of pushes into the chunks that are to be sent.
func (p *bare) openProgram() error {
	if err := p.libra.openProgram(); err != nil {
		return err
	}
	stripes := pushStripes[p.cfg.Size]
	hot, load, err := pushWorkload()
	if err != nil {
		return err
	}
	pack, err := packer.New(packer.Config{HotSet: hot, Layout: packer.Dense, Stripes: stripes})
	if err != nil {
		return err
	}
	envelope, err := wire.NewEnvelope(p.cfg.Self, p.cfg.Aggregator)
	if err != nil {
		return err
	}
	w := chunkWriter{envelope: envelope}
	for _, f := range p.ready {
		off := p.umem.RxOffset()
		w.frames = append(w.frames, p.umem.Bytes(f)[off:off+p.cfg.Size])
	}
	for i := 0; len(w.frames) >= pushFrames(stripes); i++ {
		if err := w.writePushes(pack, load[i]); err != nil {
			return err
		}
	}
	p.ready = p.ready[:len(p.ready)-len(w.frames)]
	return nil
}

// chunkWriter has a packer fill frames, one after the other.
type chunkWriter struct {
	envelope *wire.Envelope
	frames   [][]byte // not filled yet
}

var errCold = errors.New("a key of a push is not hot")

func (w *chunkWriter) writePushes(p *packer.Packer, load pushed) error {
	if err := p.Begin(load.keys, load.grads); err != nil {
		return err
	}
	for p.Next() == wire.TypeHot {
		payload, err := p.Fill(w.nextChunk())
		if err != nil {
			return err
		}
		w.sealChunk(payload)
	}
	if p.Next() != 0 {
		return errCold
	}
	return nil
}

func (w *chunkWriter) nextChunk() []byte { return w.frames[0][w.envelope.Len():] }

func (w *chunkWriter) sealChunk(payload []byte) {
	wire.Header{
		Type: wire.TypeHot, Flags: wire.FlagDense | wire.FlagQuiet, Job: pushJob, Sender: pushSender, Epoch: pushEpoch,
	}.Put(payload)
	w.envelope.Seal(w.frames[0])
	w.frames = w.frames[1:]
}

// renumber changes the sequence number of a sealed frame and whether it asks for an
// answer, and the UDP checksum by the difference (RFC 1624), without reading the payload
// again.
func renumber(frame []byte, seq uint32) {
	payload, checksum := frame[wire.EnvelopeLen:], frame[wire.EnvelopeLen-2:][:2]
	flags := wire.FlagDense | wire.FlagQuiet
	if seq%askEvery == 0 {
		flags = wire.FlagDense | wire.FlagCover
	}
	sum := uint64(^binary.BigEndian.Uint16(checksum)) +
		uint64(^binary.BigEndian.Uint16(payload)) + uint64(^binary.BigEndian.Uint32(payload[8:]))
	payload[1] = byte(flags)
	binary.BigEndian.PutUint32(payload[8:], seq)
	sum += uint64(binary.BigEndian.Uint16(payload)) + uint64(seq)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	c := ^uint16(sum)
	if c == 0 {
		c = 0xffff // 0 means that there is none (RFC 768)
	}
	binary.BigEndian.PutUint16(checksum, c)
}

// pushFrames takes acknowledgements in and sends as many frames.
func (p *bare) pushFrames() (acked int, err error) {
	if p.framesInFlight() > 0 {
		if acked, err = p.takeAcks(); err != nil {
			return acked, err
		}
		p.silent++
		if acked > 0 {
			p.silent = 0
		}
		if p.silent == reseedAfter {
			p.silent, p.acked = 0, p.seq-1
		}
	}
	for p.framesInFlight() < pushWindow {
		sent, err := p.sendHot(min(batch, pushWindow-p.framesInFlight()))
		if err != nil || sent == 0 {
			return acked, err
		}
	}
	return acked, nil
}

// framesInFlight returns how many frames are not acknowledged.
func (p *bare) framesInFlight() int { return int(p.seq - 1 - p.acked) }

// takeAcks returns how many frames are acknowledged by those that asked for an answer.
func (p *bare) takeAcks() (acked int, err error) {
	descs, _, err := p.awaitBatch()
	if err != nil {
		return 0, err
	}
	for _, d := range descs {
		answer := p.umem.Packet(d)
		payload := answer[min(wire.EnvelopeLen, len(answer)):]
		h, err := wire.ParseHeader(payload)
		switch {
		case err != nil || h.Type != wire.TypeAck: // late, from the test before
		case h.Seq%askEvery != 0: // not asked for: one before it was lost
		case len(payload) < wire.CoverLen:
			return 0, fmt.Errorf("answer % x has no cover", answer)
		default:
			p.acked = h.Seq
			acked += bits.OnesCount64(wire.Cover(payload, h) >> wire.CoverAhead & (1<<askEvery - 1))
		}
	}
	return acked, p.sock.Release(descs)
}

func (p *bare) sendHot(n int) (int, error) {
	n = min(n, len(p.ready))
	off := p.umem.RxOffset()
	for i, f := range p.ready[len(p.ready)-n:] {
		renumber(p.umem.Bytes(f)[off:], p.seq+uint32(i))
	}
	sent, err := p.transmitFrames(n)
	p.seq += uint32(sent)
	return sent, err
}

// pushWorker is package transport's worker: the whole reliable push path.
type pushWorker struct {
	cfg      *programConfig
	worker   *transport.Worker
	load     []pushed
	prepared []*transport.Prepared // prepared pushes of the load; nil: the worker looks its keys up
	frames   int                   // frames of a push
	next     int                   // number of the next push
	tickets  [pushesFlying]*transport.Ticket
}

func (p *pushWorker) openProgram() error {
	// A worker has a goroutine of its own. Locked to a thread, this one could
	// change places with it only by way of the kernel; and the process has one CPU.
	runtime.UnlockOSThread()
	runtime.GOMAXPROCS(1)

	hot, load, err := pushWorkload()
	if err != nil {
		return err
	}
	p.load, p.frames = load, pushFrames(pushStripes[p.cfg.Size])
	l, err := p.cfg.OpenLink()
	if err != nil {
		return err
	}
	server := p.cfg.Aggregator // which no frame goes to, since all keys are hot
	server.Port++
	p.worker, err = transport.NewWorker(context.Background(), transport.WorkerConfig{
		Link: l, Job: pushJob, Sender: pushSender, AggregatorEpoch: pushEpoch,
		HotSet: hot, Layout: packer.Dense, Stripes: pushStripes[p.cfg.Size],
		Aggregator: p.cfg.Aggregator, Server: server, Flow: retransmit.Config{Size: pushWindow},
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if p.cfg.Baseline == Unprepared {
		return nil
	}
	for _, load := range p.load {
		prepared, err := p.worker.Prepare(load.keys)
		if err != nil {
			return errors.Join(err, p.worker.Close())
		}
		p.prepared = append(p.prepared, prepared)
	}
	return nil
}

// pushFrames waits for the oldest push and queues another in its place.
func (p *pushWorker) pushFrames() (acked int, err error) {
	ticket := &p.tickets[p.next%len(p.tickets)]
	if *ticket != nil {
		if err := (*ticket).Wait(context.Background()); err != nil {
			return 0, err
		}
		acked = p.frames
	}
	n := p.next % len(p.load)
	p.next++
	if load := p.load[n]; p.prepared == nil {
		*ticket, err = p.worker.PushLater(context.Background(), load.keys, load.grads)
	} else {
		*ticket, err = p.prepared[n].PushLater(context.Background(), load.grads)
	}
	return acked, err
}

func (p *pushWorker) countDrops() (map[string]uint64, error) {
	s, err := p.worker.Stats(context.Background())
	return map[string]uint64{
		"worker: repeated":        s.Hot.Retransmitted,
		"worker: answered twice":  s.Hot.Repeated,
		"worker: bad answer":      s.Malformed + s.Stray,
		"socket: driver refused":  s.Link.SendError,
		"socket: RX dropped":      s.Link.Overrun,
		"worker: foreign or torn": s.Link.Foreign + s.Link.Truncated + s.Link.BadChecksum,
	}, err
}

func (p *pushWorker) closeProgram() error { return experiment.Close(p.worker) }

// What is pushed. A push fills pushFrames(stripes) frames to the last lane, so
// that all frames of a test have the size of the test.
const (
	hotKeys      = 30_000
	zipfExponent = 1.1
	pushKeys     = 19 * wire.DefaultStripes * wire.Lanes // distinct keys of a push: 4180
	pushBatches  = 256                                   // different pushes, used in turn
	pushesFlying = 16                                    // pushes that are not acknowledged
	workloadSeed = 1
)

// pushWindow is how many frames are not acknowledged, of both programs. It is a power
// of two, as a worker's window has to be. A veth ring holds 256, but gives room back
// 16 at a time, so 256 in flight lose some, which a worker repeats after a timeout.
const pushWindow = 128

// Where the far end's aggregator expects pushes from, and as what.
const (
	pushJob    = 1
	pushSender = 1
	pushEpoch  = 1
)

// pushFrames returns how many frames a push takes, each of a number of stripes.
func pushFrames(stripes int) int { return pushKeys / (stripes * wire.Lanes) }

// pushed is one push: distinct hot keys in ascending order, as the features of a
// batch are, and a gradient for each.
type pushed struct {
	keys  []uint64
	grads []float32
}

// pushWorkload draws the hot set and the pushes, the same in every process.
func pushWorkload() (*packer.HotSet, []pushed, error) {
	rng := rand.New(rand.NewPCG(workloadSeed, hotKeys))
	ranked := make([]uint64, hotKeys) // far apart, as hashed features are
	for rank := range ranked {
		ranked[rank] = rng.Uint64()
	}
	hot, err := packer.NewHotSet(1, ranked, nil, packer.Meta{})
	if err != nil {
		return nil, nil, err
	}
	zipf := rand.NewZipf(rng, zipfExponent, 1, hotKeys-1)
	load := make([]pushed, pushBatches)
	drawnFor := make([]int, hotKeys) // by rank: number of the last push that it is in, from 1 on
	for i := range load {
		p := pushed{keys: make([]uint64, 0, pushKeys), grads: make([]float32, pushKeys)}
		for len(p.keys) < pushKeys {
			if rank := zipf.Uint64(); drawnFor[rank] != i+1 {
				drawnFor[rank] = i + 1
				p.keys = append(p.keys, ranked[rank])
			}
		}
		slices.Sort(p.keys)
		for k := range p.grads {
			p.grads[k] = rng.Float32() - 0.5
		}
		load[i] = p
	}
	return hot, load, nil
}
