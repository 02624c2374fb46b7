package engine

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// bare is package afxdp alone against the aggregator: the frames of the
// pushes are there before the test, only their numbers change.
type bare struct {
	libra
	seq    uint32 // of the next frame
	flying int    // frames that are not acknowledged
	silent int    // waits in a row without an acknowledgement
}

func openBare(cfg *programConfig) (program, error) {
	p := &bare{libra: libra{cfg: cfg}, seq: wire.FirstSeq}
	err := p.open()
	if err == nil {
		err = p.prepareHot()
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// prepareHot writes the frames of pushes into the chunks that are to be sent.
func (p *bare) prepareHot() error {
	stripes := pushStripes(p.cfg.Size)
	hot, load, err := pushWorkload()
	if err != nil {
		return err
	}
	pack, err := packer.New(packer.Config{HotSet: hot, Layout: packer.Dense, Stripes: stripes})
	if err != nil {
		return err
	}
	envelope, err := wire.NewEnvelope(p.cfg.pushEnds())
	if err != nil {
		return err
	}
	w := chunkWriter{envelope: envelope}
	for _, f := range p.ready {
		off := p.umem.RxOffset()
		w.frames = append(w.frames, p.umem.Bytes(f)[off:off+p.cfg.Size])
	}
	for i := 0; len(w.frames) >= pushFrames(stripes); i++ {
		if err := w.write(pack, load[i]); err != nil {
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

// write fills the frames of a push.
func (w *chunkWriter) write(p *packer.Packer, load pushed) error {
	if err := p.Begin(load.keys, load.grads); err != nil {
		return err
	}
	for p.Next() == wire.TypeHot {
		payload, err := p.Fill(w.next())
		if err != nil {
			return err
		}
		w.seal(payload)
	}
	if p.Next() != 0 {
		return errCold
	}
	return nil
}

// next returns the payload of the frame that is filled next.
func (w *chunkWriter) next() []byte { return w.frames[0][w.envelope.Len():] }

// seal completes a frame whose payload is filled.
func (w *chunkWriter) seal(payload []byte) {
	wire.Header{
		Type: wire.TypeHot, Flags: wire.FlagDense, Job: pushJob, Sender: pushSender, Epoch: pushEpoch,
	}.Put(payload)
	w.envelope.Seal(w.frames[0])
	w.frames = w.frames[1:]
}

// renumber changes the sequence number of a sealed frame, and the UDP checksum by the
// difference (RFC 1624), without reading the payload again.
func renumber(frame []byte, seq uint32) {
	number, checksum := frame[wire.EnvelopeLen+8:][:4], frame[wire.EnvelopeLen-2:][:2]
	before := binary.BigEndian.Uint32(number)
	binary.BigEndian.PutUint32(number, seq)
	sum := uint64(^binary.BigEndian.Uint16(checksum)) + uint64(^before) + uint64(seq)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	c := ^uint16(sum)
	if c == 0 {
		c = 0xffff // 0 means that there is none (RFC 768)
	}
	binary.BigEndian.PutUint16(checksum, c)
}

// push takes acknowledgements in and sends as many frames.
func (p *bare) push() (acked int, err error) {
	if p.flying > 0 {
		if acked, err = p.takeAcks(); err != nil {
			return acked, err
		}
		p.flying -= min(acked, p.flying)
		p.silent++
		if acked > 0 {
			p.silent = 0
		}
		if p.silent == reseedAfter {
			p.silent, p.flying = 0, 0
			p.cfg.control.reseeded.Add(pushWindow)
		}
	}
	for p.flying < pushWindow {
		sent, err := p.sendHot(min(batch, pushWindow-p.flying))
		if err != nil || sent == 0 {
			return acked, err
		}
	}
	return acked, nil
}

func (p *bare) takeAcks() (int, error) {
	descs, _, err := p.await()
	if err != nil {
		return 0, err
	}
	for _, d := range descs {
		if answer := p.umem.Packet(d); len(answer) <= wire.EnvelopeLen || wire.Type(answer[wire.EnvelopeLen]&0xf) != wire.TypeAck {
			return 0, fmt.Errorf("answer % x is no acknowledgement", answer)
		}
	}
	return len(descs), p.sock.Release(descs)
}

// sendHot sends up to n frames and returns how many.
func (p *bare) sendHot(n int) (int, error) {
	n = min(n, len(p.ready))
	off := p.umem.RxOffset()
	for i, f := range p.ready[len(p.ready)-n:] {
		renumber(p.umem.Bytes(f)[off:], p.seq+uint32(i))
	}
	sent, err := p.transmit(n)
	p.seq += uint32(sent)
	p.flying += sent
	return sent, err
}
