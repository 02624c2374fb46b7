// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

const (
	// longestLate is the longest time that a late copy is late: it comes into other steps, generations
	// and admissions.
	longestLate = 4 * time.Second
	// ethernet is the length of the two addresses, which a copy keeps: it has to arrive.
	ethernet = 12
	// pollEvery is how often the copier looks whether it has to end.
	pollEvery = 50 * time.Millisecond
)

// copier sends copies of the frames that cross a bridge, later, or with a flipped bit.
type copier struct {
	life   *Life
	fd     int
	bridge int // index
	rng    *rand.Rand
	held   copies

	late, corrupt int
}

// newCopier returns a copier that sees all frames from now on. Its user calls run, and then close.
func newCopier(b *testbed.Bed, l *Life) (*copier, error) {
	c := &copier{life: l, bridge: b.Switch().Index, rng: rand.New(rand.NewPCG(l.Seed, 0xc0b1e5))}
	err := b.Switch().Do(func() (err error) {
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
			int(htons(unix.ETH_P_ALL)))
		return os.NewSyscallError("socket", err)
	})
	return c, err
}

func (c *copier) close() { _ = unix.Close(c.fd) }

// run copies frames until ctx ends.
func (c *copier) run(ctx context.Context) error {
	frame := make([]byte, 1<<16)
	for ctx.Err() == nil {
		wait := pollEvery
		if len(c.held) > 0 {
			wait = min(wait, time.Until(c.held[0].due))
		}
		fds := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, int(max(0, wait.Milliseconds()))); err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
		for range 256 { // then look at what is due
			n, from, err := unix.Recvfrom(c.fd, frame, 0)
			if err != nil {
				break // nothing there, or an interface is down
			}
			if at, ok := from.(*unix.SockaddrLinklayer); ok && at.Pkttype != unix.PACKET_OUTGOING && at.Ifindex != c.bridge &&
				n > ethernet {
				c.see(frame[:n])
			}
		}
		for now := time.Now(); len(c.held) > 0 && !c.held[0].due.After(now); {
			c.send(heap.Pop(&c.held).(held).frame)
		}
	}
	return nil
}

// see decides what becomes of a frame.
func (c *copier) see(frame []byte) {
	late, corrupt := c.rng.Float64() < c.life.Late, c.rng.Float64() < c.life.Corrupt
	if corrupt {
		// One bit: a checksum of 16 bits does not find all pairs.
		bad := append([]byte(nil), frame...)
		bad[ethernet+c.rng.IntN(len(bad)-ethernet)] ^= 1 << c.rng.IntN(8)
		c.send(bad)
		c.corrupt++
	}
	if late {
		due := time.Now().Add(between(c.rng, 10*time.Microsecond, longestLate))
		heap.Push(&c.held, held{due, append([]byte(nil), frame...)})
		c.late++
	}
}

// send has the bridge forward a frame. A link that is down loses it.
func (c *copier) send(frame []byte) {
	to := &unix.SockaddrLinklayer{Ifindex: c.bridge, Halen: 6}
	copy(to.Addr[:], frame[:6])
	_ = unix.Sendto(c.fd, frame, 0, to)
}

func htons(x uint16) uint16 { return x<<8 | x>>8 }

// held is a frame that is sent later.
type held struct {
	due   time.Time
	frame []byte
}

// copies is a heap with the earliest one first.
type copies []held

func (c copies) Len() int           { return len(c) }
func (c copies) Less(i, j int) bool { return c[i].due.Before(c[j].due) }
func (c copies) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *copies) Push(x any)        { *c = append(*c, x.(held)) }
func (c *copies) Pop() any {
	last := len(*c) - 1
	x := (*c)[last]
	*c = (*c)[:last]
	return x
}
