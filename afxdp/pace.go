// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"
)

// paceBehind is the longest delay after which a paced loop catches up: more at once would be the
// burst that pacing prevents.
const paceBehind = 10 * time.Millisecond

// Pace returns a loop for [Group.Run] that sends packets at a rate, in packets per second from each
// socket: a group of sockets that only send has one for each transmit queue, unless
// GroupConfig.Queues is set. write is called when packets are due: it writes their bytes into the
// frames ([UMEM.Packet], where Desc.Len is the available room), sets each Desc.Len, and returns the
// number of packets written, the first ones. The others go back to the pool and are still due:
// write is called again at once, even after 0, so it should wait before it returns if it has
// nothing to send. With io.EOF the loop sends the written packets, waits until they are
// transmitted, and returns nil; with another error it returns that.
//
// No packet is sent before its time. Its delay depends on the system's timers, some 50 µs and more
// on a busy machine, and packets that became due meanwhile are sent at once, up to 64 per call: so
// the rate is kept, not the distance. A loop that is more than 10 ms late does not catch up with
// packets due before that.
//
// It is for sockets that do not receive: see GroupConfig.Match.
func Pace(rate float64, write func(s *Socket, packets []Desc) (int, error)) func(*Socket) error {
	// the sockets for which write has returned io.EOF: it is not called for them again, even if the
	// link goes down before the end
	var ended sync.Map
	return func(s *Socket) error {
		if !(rate > 0) || math.IsInf(rate, 1) {
			return fmt.Errorf("%w: Pace of %v packets a second", ErrConfig, rate)
		}
		p := pacing{s: s, start: time.Now(), rate: rate, packets: make([]Desc, 0, serveBatch),
			frames: make([]Frame, serveBatch)}
		for {
			if _, last := ended.Load(s); last {
				err := p.awaitTransmitted()
				if err == nil {
					ended.Delete(s)
				}
				return err
			}
			due, err := p.awaitDue()
			if err != nil {
				return err
			}
			stop, err := p.sendDue(due, write)
			if errors.Is(stop, io.EOF) {
				ended.Store(s, nil)
			} else if stop != nil {
				return stop // alone: joined with an ErrLinkDown, it would make Run continue
			}
			if err != nil {
				return err
			}
		}
	}
}

type pacing struct {
	s       *Socket
	rate    float64
	start   time.Time // when packet 0 was due
	sent    float64
	packets []Desc
	frames  []Frame
}

// awaitDue waits until packets are due and there are frames for them, and returns how many.
func (p *pacing) awaitDue() (int, error) {
	for {
		if err := p.freeTransmitted(); err != nil {
			return 0, err
		}
		elapsed := time.Since(p.start)
		late := elapsed - time.Duration(p.sent/p.rate*float64(time.Second))
		if late > paceBehind {
			p.start = p.start.Add(late - paceBehind)
			elapsed, late = elapsed-(late-paceBehind), paceBehind
		}
		due := 1 + int(min(elapsed.Seconds()*p.rate-p.sent, serveBatch-1)) // min keeps it within an int
		switch {
		case late < 0:
			if _, err := p.s.Poll(0, -late); err != nil {
				return 0, err
			}
		case p.s.pool.Available() == 0:
			if _, err := p.s.Poll(EventCompletion, -1); err != nil {
				return 0, err
			}
		default:
			return min(due, p.s.pool.Available()), nil
		}
	}
}

// sendDue calls write and sends its packets. stop is the error of write.
func (p *pacing) sendDue(due int, write func(*Socket, []Desc) (int, error)) (stop, err error) {
	n := p.s.pool.AllocBatch(p.frames[:due])
	p.packets = p.packets[:n]
	for i, f := range p.frames[:n] {
		p.packets[i] = Desc{Frame: f, Off: uint16(p.s.umem.RxOffset()), Len: uint32(p.s.umem.RxRoom())}
	}
	wrote, stop := write(p.s, p.packets)
	if wrote < 0 || wrote > n {
		return nil, fmt.Errorf("%w: Pace: %d of %d packets were written", ErrConfig, wrote, n)
	}
	p.sent += float64(wrote)
	if err := p.dropPackets(p.packets[wrote:]); err != nil {
		return stop, err
	}
	for rest := p.packets[:wrote]; len(rest) > 0; {
		n, err := p.s.Send(rest)
		rest = rest[n:]
		if err = errors.Join(err, p.s.Kick()); err == nil && len(rest) > 0 {
			if _, err = p.s.Poll(EventCompletion, -1); err == nil {
				err = p.freeTransmitted()
			}
		}
		if err != nil {
			return stop, errors.Join(err, p.dropPackets(rest))
		}
	}
	return stop, nil
}

// dropPackets returns the frames of packets that are not sent to the pool.
func (p *pacing) dropPackets(packets []Desc) error {
	for _, d := range packets {
		if err := p.s.pool.Free(d.Frame); err != nil {
			return err
		}
	}
	return nil
}

// freeTransmitted returns transmitted frames to the pool.
func (p *pacing) freeTransmitted() error {
	var done [serveBatch]Frame
	n, err := p.s.Completed(done[:])
	if err != nil {
		return err
	}
	return p.s.pool.Free(done[:n]...)
}

// awaitTransmitted waits until everything is transmitted.
func (p *pacing) awaitTransmitted() error {
	for p.s.InFlight() > 0 {
		if err := p.s.Kick(); err != nil {
			return err
		}
		if _, err := p.s.Poll(EventCompletion, -1); err != nil {
			return err
		}
		if err := p.freeTransmitted(); err != nil {
			return err
		}
	}
	return nil
}
