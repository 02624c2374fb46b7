// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/wire"
)

// interfaceWork is what the sockets of a group do in a test.
type interfaceWork struct {
	frame []byte // frame to send
	pace  float64

	frames, bytes atomic.Uint64 // frames and bytes received

	mu    sync.Mutex // guards what follows
	times []uint32   // of round trips, in ns
	lost  uint64     // requests without an answer
}

// answerLimit is how long a request waits for its answer before it counts as lost.
const answerLimit = 100 * time.Millisecond

func (w *interfaceWork) runTest(ctx context.Context, group *afxdp.Group, test Test) error {
	switch test {
	case Transmit:
		if w.pace > 0 {
			return group.Run(ctx, afxdp.Pace(w.pace/float64(len(group.Sockets())), w.writeFrames))
		}
		return group.Run(ctx, w.floodFrames)
	case Receive:
		return group.Run(ctx, afxdp.Serve(w.countFrames))
	case Forward:
		return group.Run(ctx, afxdp.Serve(w.sendBack))
	default:
		return w.askOneByOne(ctx, group)
	}
}

// readCounters returns what was lost, by cause, and how many frames moved.
func (w *interfaceWork) readCounters(group *afxdp.Group, test Test) (lost map[string]uint64, frames uint64, err error) {
	st, err := group.Snapshot()
	lost = socketDrops(st)
	switch test {
	case Transmit:
		frames = st.TxCompleted
	case RequestResponse:
		w.mu.Lock()
		defer w.mu.Unlock()
		frames, lost["no answer within 100 ms"] = w.frames.Load(), w.lost
	default:
		frames = w.frames.Load()
	}
	return lost, frames, err
}

// takeTimes returns the round-trip times since it was called before.
func (w *interfaceWork) takeTimes() []uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	times := w.times
	w.times = nil
	return times
}

// meanSize is that of the frames that came in.
func (w *interfaceWork) meanSize() int {
	return int(w.bytes.Load() / max(1, w.frames.Load()))
}

// writeFrames is for afxdp.Pace.
func (w *interfaceWork) writeFrames(s *afxdp.Socket, packets []afxdp.Desc) (int, error) {
	for i := range packets {
		packets[i].Len = uint32(copy(s.UMEM().Packet(packets[i]), w.frame))
	}
	return len(packets), nil
}

// floodFrames sends as fast as it can. The bytes are written once.
func (w *interfaceWork) floodFrames(s *afxdp.Socket) error {
	p := libra{cfg: &programConfig{frame: w.frame}}
	p.prepareFrames(s)
	for {
		ready := len(p.ready)
		sent, err := p.transmitFrames(batch)
		if err == nil && sent == 0 && len(p.ready) == ready { // nothing was sent or completed
			_, err = s.Poll(afxdp.EventCompletion, idle)
		}
		if err != nil {
			return err
		}
	}
}

// countFrames is for afxdp.Serve.
func (w *interfaceWork) countFrames(_ *afxdp.Socket, packets []afxdp.Desc) error {
	bytes := 0
	for _, d := range packets {
		bytes += int(d.Len)
	}
	w.bytes.Add(uint64(bytes))
	w.frames.Add(uint64(len(packets)))
	return nil
}

// sendBack is for afxdp.Serve.
func (w *interfaceWork) sendBack(s *afxdp.Socket, packets []afxdp.Desc) error {
	for _, d := range packets {
		turnRound(s.UMEM().Packet(d))
	}
	if _, err := s.Send(packets); err != nil {
		return err
	}
	return w.countFrames(s, packets)
}

// askOneByOne sends one frame at a time, at most at the pace, and waits for its return, on
// whichever queue that is.
func (w *interfaceWork) askOneByOne(ctx context.Context, group *afxdp.Group) error {
	unpin, err := afxdp.PinThread(-1)
	if err != nil {
		return err
	}
	a := asking{w: w, socket: group.Sockets()[0], poller: afxdp.NewPoller(group.Sockets()...),
		descs: make([]afxdp.Desc, batch)}
	begin, due := time.Now(), time.Duration(0) // when the next request is due, after the beginning
	for err == nil && ctx.Err() == nil {
		if err = a.askOnce(); w.pace > 0 {
			due += time.Duration(float64(time.Second) / w.pace)
			due = max(due, time.Since(begin)-time.Second) // no more than a second is caught up with
			time.Sleep(due - time.Since(begin))
		}
	}
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return errors.Join(err, unpin())
}

type asking struct {
	w      *interfaceWork
	socket *afxdp.Socket // the socket that sends
	poller *afxdp.Poller
	descs  []afxdp.Desc
	number uint64 // number of the request, which its payload begins with
}

func (a *asking) askOnce() error {
	f, ok := a.socket.Pool().Alloc()
	if !ok {
		return afxdp.ErrNoFrames
	}
	a.number++
	d := afxdp.Desc{Frame: f, Off: uint16(a.socket.UMEM().RxOffset()), Len: uint32(len(a.w.frame))}
	packet := a.socket.UMEM().Packet(d)
	copy(packet, a.w.frame)
	binary.BigEndian.PutUint64(packet[wire.EnvelopeLen:], a.number)
	start := time.Now()
	if _, err := a.socket.Send([]afxdp.Desc{d}); err != nil {
		return err
	}
	if err := a.socket.Kick(); err != nil {
		return err
	}
	answered, err := a.awaitAnswer(start.Add(answerLimit))
	took := time.Since(start)
	if err != nil {
		return err
	}
	a.w.mu.Lock()
	if answered {
		a.w.times = append(a.w.times, uint32(min(took.Nanoseconds(), int64(^uint32(0)))))
	} else {
		a.w.lost++
	}
	a.w.mu.Unlock()
	var done [batch]afxdp.Frame
	n, err := a.socket.Completed(done[:])
	if err != nil {
		return err
	}
	return a.socket.Pool().Free(done[:n]...)
}

// awaitAnswer receives until the answer arrives or the time is over.
func (a *asking) awaitAnswer(end time.Time) (answered bool, err error) {
	for left := time.Until(end); !answered && left > 0; left = time.Until(end) {
		ready, err := a.poller.Poll(afxdp.EventRx, left)
		if err != nil {
			return false, err
		}
		for _, r := range ready {
			if r.Err != nil {
				return false, r.Err
			}
			n, err := r.Socket.Receive(a.descs)
			if err != nil {
				return false, err
			}
			for _, d := range a.descs[:n] {
				p := r.Socket.UMEM().Packet(d)
				answered = answered || len(p) >= wire.EnvelopeLen+8 && binary.BigEndian.Uint64(p[wire.EnvelopeLen:]) == a.number
			}
			if err := r.Socket.Release(a.descs[:n]); err != nil {
				return false, err
			}
		}
	}
	if answered {
		a.w.frames.Add(1)
	}
	return answered, nil
}
