// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
)

// A packet of the soak, after the Ethernet header, big endian:
//
//	 0  4  CRC-32C of everything from 12 on
//	 4  8  when it arrived at the end that has it, ns of the monotonic clock
//	12  2  flow: number of the client's queue
//	14  2  1 in undisturbed time, else 0
//	16  8  number of the packet in its flow
//	24  8  when the client sent it
//	32  2  length of the frame
//	34     body
const (
	headerSize = 14
	sumAt      = headerSize
	arrivedAt  = headerSize + 4
	coveredAt  = headerSize + 12
	flowAt     = headerSize + 12
	calmAt     = headerSize + 14
	numberAt   = headerSize + 16
	sentAt     = headerSize + 24
	lengthAt   = headerSize + 32
	bodyAt     = headerSize + 34
)

// etherType is IEEE 802's first one for local experiments: the kernel's stack
// has no use for it.
const etherType = 0x88b5

// sizes of frames in bytes, in turn. Only the first passes the small MTU.
var sizes = [...]int{64, 190, 512, 1414}

const (
	largest  = 1414
	plainMTU = 1500
	smallMTU = 128
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var noise = func() []byte {
	b := make([]byte, 4096+largest)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(b) // never fails
	return b
}()

type packet struct {
	flow          uint16
	calm          bool // sent in undisturbed time
	number        uint64
	sent, arrived int64 // ns; arrived is 0 if no program wrote it
}

// size returns the length of a frame by its number.
func size(number uint64) int { return sizes[number%uint64(len(sizes))] }

// writeFrame fills a frame of size(p.number) bytes.
func (p *packet) writeFrame(b []byte) {
	clear(b[:12])
	binary.BigEndian.PutUint16(b[12:], etherType)
	binary.BigEndian.PutUint64(b[arrivedAt:], 0)
	binary.BigEndian.PutUint16(b[flowAt:], p.flow)
	b[calmAt], b[calmAt+1] = 0, 0
	if p.calm {
		b[calmAt+1] = 1
	}
	binary.BigEndian.PutUint64(b[numberAt:], p.number)
	binary.BigEndian.PutUint64(b[sentAt:], uint64(p.sent))
	binary.BigEndian.PutUint16(b[lengthAt:], uint16(len(b)))
	// An odd factor takes successive packets to all offsets.
	copy(b[bodyAt:], noise[p.number*2531%4096:])
	binary.BigEndian.PutUint32(b[sumAt:], crc32.Checksum(b[coveredAt:], castagnoli))
}

var errForeign = errors.New("soak: a foreign frame")

// read checks a frame and returns its contents.
func read(b []byte) (p packet, err error) {
	if len(b) < headerSize || binary.BigEndian.Uint16(b[12:]) != etherType {
		return p, errForeign
	}
	if len(b) < bodyAt {
		return p, fmt.Errorf("soak: a packet of %d bytes, the headers take %d", len(b), bodyAt)
	}
	p = packet{
		flow:    binary.BigEndian.Uint16(b[flowAt:]),
		calm:    b[calmAt+1] == 1,
		number:  binary.BigEndian.Uint64(b[numberAt:]),
		sent:    int64(binary.BigEndian.Uint64(b[sentAt:])),
		arrived: int64(binary.BigEndian.Uint64(b[arrivedAt:])),
	}
	if want, got := binary.BigEndian.Uint32(b[sumAt:]), crc32.Checksum(b[coveredAt:], castagnoli); want != got {
		return p, fmt.Errorf("soak: flow %d, packet %d: checksum %#x, the contents give %#x", p.flow, p.number, want, got)
	}
	if n := binary.BigEndian.Uint16(b[lengthAt:]); int(n) != len(b) || len(b) != size(p.number) {
		return p, fmt.Errorf("soak: flow %d, packet %d: %d bytes, it was sent with %d", p.flow, p.number, len(b), n)
	}
	return p, nil
}

// windowSize is the number of packets that a queue has on their way: a quarter of
// its frames, see framesEach.
const windowSize = 256

// remembered is the number of its last packets whose fate a window knows.
const remembered = 1 << 15

// Fates of a packet.
const (
	fateWaiting uint8 = iota
	fateAnswered
	fateGivenUp
)

// sendWindow is what a client knows about the packets of one flow. Numbers begin
// with 0.
type sendWindow struct {
	size       uint64
	base, next uint64 // those before base are answered or given up
	sent       [remembered]int64
	fate       [remembered]uint8
}

func (w *sendWindow) freeNumbers() int { return int(w.size - (w.next - w.base)) }

func (w *sendWindow) addPacket(now int64) {
	w.sent[w.next%remembered], w.fate[w.next%remembered] = now, fateWaiting
	w.next++
}

// expireBefore gives up packets that were sent before a time.
func (w *sendWindow) expireBefore(before int64) {
	for ; w.base < w.next; w.base++ {
		i := w.base % remembered
		if w.fate[i] == fateWaiting {
			if w.sent[i] >= before {
				return
			}
			w.fate[i] = fateGivenUp
		}
	}
}

// Impossible answers.
var (
	errNeverSent = errors.New("soak: an answer to a packet that was never sent")
	errTwice     = errors.New("soak: a second answer to a packet")
	errForgotten = errors.New("soak: an answer to a packet that the window has forgotten")
)

func (w *sendWindow) answerPacket(number uint64) error {
	switch {
	case number >= w.next:
		return errNeverSent
	case w.next-number > remembered:
		return errForgotten
	// One that was given up may still be answered.
	case w.fate[number%remembered] == fateAnswered:
		return errTwice
	}
	w.fate[number%remembered] = fateAnswered
	for w.base < w.next && w.fate[w.base%remembered] != fateWaiting {
		w.base++
	}
	return nil
}

func (w *sendWindow) oldestSent() (sent int64, waiting bool) {
	if w.base == w.next {
		return 0, false
	}
	return w.sent[w.base%remembered], true
}
