// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/bench/child"
)

// giveUpAfter is how long a client waits for an answer. Packets that break with
// the network must not keep the window shut: answers have to come again soon
// after the network does.
const giveUpAfter = 50 * time.Millisecond

// client is the role of a port that sends packets and takes the answers.
type client struct {
	*port
	flow   uint16
	window sendWindow
	out    [batch]afxdp.Desc

	paused   atomic.Bool
	answers  atomic.Uint64
	answered atomic.Int64 // when the last answer came

	// markedAt is when the first answer came to a packet of at least markSize
	// bytes that was sent at markTime or later.
	markTime atomic.Int64
	markSize atomic.Int64
	markedAt atomic.Int64

	calm      bool // undisturbed time; set while the port is held
	roundTrip *hdrhistogram.Histogram
}

func newClient(p *port, flow uint16) *client {
	return &client{port: p, flow: flow, window: sendWindow{size: windowSize}, roundTrip: newHistogram()}
}

// setMark asks for the first answer to a packet of at least size bytes that is
// sent at a time or later.
func (c *client) setMark(at int64, size int) {
	c.markSize.Store(int64(size))
	c.markTime.Store(at)
}

// resumedAt returns when the answer came that mark asked for.
func (c *client) resumedAt(mark int64) (at int64, ok bool) {
	// An earlier value is the answer to an earlier mark.
	at = c.markedAt.Load()
	return at, at >= mark
}

func (c *client) movePackets() error {
	at := now()
	c.window.expireBefore(at - int64(giveUpAfter))
	// Before it sends: a client that finds no frame to send waits for completions.
	if err := c.collectFrames(false); err != nil {
		return err
	}
	sent := 0
	if !c.paused.Load() {
		var err error
		if sent, err = c.sendPackets(at); err != nil {
			return err
		}
	}
	if sent > 0 || c.sock.Load().Backlog() > 0 {
		if err := c.sock.Load().Kick(); err != nil {
			return err
		}
	}
	descs, err := c.receiveBatch()
	if err != nil {
		return err
	}
	if len(descs) == 0 {
		if sent > 0 {
			return nil
		}
		return c.waitForAnswer()
	}
	for i, d := range descs {
		c.takeAnswer(c.pool.UMEM().Packet(d), i == 0)
	}
	return c.giveBack(descs, c.sock.Load().Release(descs))
}

// sendPackets fills the window up with packets.
func (c *client) sendPackets(at int64) (int, error) {
	n := min(batch, c.window.freeNumbers())
	n = c.pool.AllocBatch(c.frames[:n])
	first := c.window.next
	for i, f := range c.frames[:n] {
		p := packet{flow: c.flow, number: first + uint64(i), sent: at, calm: c.calm}
		c.out[i] = afxdp.Desc{Frame: f, Off: uint16(c.pool.UMEM().RxOffset()), Len: uint32(size(p.number))}
		p.writeFrame(c.pool.UMEM().Packet(c.out[i]))
	}
	sent, err := c.sock.Load().Send(c.out[:n])
	for range sent {
		c.window.addPacket(at)
	}
	c.counts.Sent += uint64(sent)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return sent, err
	}
	// What the rings had no room for, or a closed socket refused.
	return sent, errors.Join(err, c.pool.Free(c.frames[sent:n]...))
}

func (c *client) waitForAnswer() error {
	want, timeout := afxdp.EventRx, -time.Nanosecond
	if oldest, waiting := c.window.oldestSent(); waiting {
		timeout = max(time.Millisecond, time.Duration(oldest-now())+giveUpAfter)
	}
	if c.sock.Load().InFlight() > 0 && (c.paused.Load() || c.pool.Available() == 0) {
		want |= afxdp.EventCompletion
	}
	return c.pollSocket(want, timeout)
}

func (c *client) takeAnswer(b []byte, first bool) {
	p, ok := c.checkPacket(b)
	if !ok {
		return
	}
	if p.flow != c.flow {
		c.noteSpoilt(fmt.Errorf("soak: an answer for flow %d came to flow %d", p.flow, c.flow))
		return
	}
	if err := c.window.answerPacket(p.number); err != nil {
		c.noteSpoilt(fmt.Errorf("%w: flow %d, packet %d", err, p.flow, p.number))
		return
	}
	at := now()
	if first && p.calm {
		c.noteArrival(p)
	}
	if p.calm {
		record(c.roundTrip, at-p.sent)
	}
	c.answers.Add(1)
	c.answered.Store(at)
	if mark := c.markTime.Load(); mark != 0 && p.sent >= mark && int64(len(b)) >= c.markSize.Load() &&
		c.markTime.CompareAndSwap(mark, 0) {
		c.markedAt.Store(at)
	}
}

func (c *client) isSettled() bool {
	_, waiting := c.window.oldestSent()
	return !waiting && c.port.isSettled()
}

func (c *client) describeWait() string {
	return fmt.Sprintf("%d packets unanswered, %s", c.window.next-c.window.base, c.port.describeWait())
}

// server is the role of a port that sends every packet back.
type server struct {
	*port
}

func (s server) movePackets() error {
	sock := s.sock.Load()
	if sock.Backlog() > 0 {
		if err := sock.Kick(); err != nil {
			return err
		}
	}
	if err := s.collectFrames(true); err != nil {
		return err
	}
	descs, err := s.receiveBatch()
	if err != nil {
		return err
	}
	if len(descs) == 0 {
		want := afxdp.EventRx
		if sock.InFlight() > 0 {
			want |= afxdp.EventCompletion
		}
		return s.pollSocket(want, -1)
	}
	for i, d := range descs {
		// A corrupt packet goes back too: the client then sees it.
		p, ok := s.checkPacket(s.pool.UMEM().Packet(d))
		if i == 0 && ok && p.calm {
			s.noteArrival(p)
		}
	}
	n, err := sock.Send(descs)
	s.counts.Sent += uint64(n)
	if err != nil {
		return s.giveBack(descs[n:], err)
	}
	// The TX ring has an entry for every frame, so all were taken.
	return sock.Kick()
}

// Requests to the server's process.
const (
	opAccount = "account" // come to rest and count
	opStatus  = "status"  // describe what the ports wait for
	opClose   = "close"   // close the socket of a queue while it is used; its port opens another
	opReopen  = "reopen"  // reopen the socket of a queue
)

// answerLimit bounds what the server's process does for one request.
const answerLimit = 2 * time.Minute

// serverConfig configures the server's process.
type serverConfig struct {
	Interface string
	Queues    int
}

// RunChild is the process of the echo server: Run starts it with an argument
// after Config.ChildCommand, in the namespace of its end.
func RunChild(args []string) error { return child.Main(args, serve) }

// serve runs until the process is told to end or a port fails.
func serve(ctx context.Context, c serverConfig) (err error) {
	e, err := openEnd(ctx, c.Interface, c.Queues, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	for _, p := range e.ports {
		p.role = server{p}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running, ctx := errgroup.WithContext(ctx) // a port's failure ends Serve
	running.Go(func() error { return e.servePorts(ctx, func(fn func() error) error { return fn() }) })
	running.Go(func() error {
		defer cancel()
		return child.Serve(ctx, e.answerCall)
	})
	return running.Wait()
}

func (e *end) answerCall(ctx context.Context, op string, arg json.RawMessage) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var queue int // 0 for requests without
	if len(arg) > 0 {
		if err := json.Unmarshal(arg, &queue); err != nil {
			return nil, err
		}
	}
	switch op {
	case opAccount:
		a, err := e.countFrames(ctx)
		if err == nil {
			a.PID = os.Getpid()
			a.Memory, err = takeMemory()
		}
		return a, err
	case opStatus:
		return e.describePorts(ctx), nil
	case opClose:
		return nil, e.ports[queue].sock.Load().Close()
	case opReopen:
		return nil, e.ports[queue].reopenSocket(ctx)
	}
	return nil, child.Unknown(op)
}

// reopenSocket makes a port replace its kernel socket. A socket that was closed
// meanwhile is replaced anyway.
func (p *port) reopenSocket(ctx context.Context) error {
	var err error
	if asked := p.runOnLoop(ctx, func() { err = p.sock.Load().Reopen(ctx) }); asked != nil {
		return asked
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
