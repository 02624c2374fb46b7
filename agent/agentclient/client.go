// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package agentclient is a client of the host agent in Go, for tests and benchmarks. Go programs
// that may own the link use package transport instead.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/wire"
)

// Client is a session with an agent. It belongs to one goroutine.
type Client struct {
	// Alone means that the process has nothing to do while the client sleeps. It then sleeps in a
	// system call unknown to Go's scheduler: other goroutines wait for it, up to 10 ms.
	Alone bool

	conn    *net.UnixConn
	raw     syscall.RawConn // of conn
	socket  string
	welcome *agentproto.Welcome
	mem     *agentproto.Memory
	tail    uint32                           // entries submitted
	head    uint32                           // completions read
	tickets uint64                           // like tail, without wrapping
	done    map[uint64]agentproto.Completion // read and not waited for, by ticket
	regions []region                         // used parts of the buffer area
	idle    sys.Look                         // polls before a sleep
	floats  map[uint64]uint64                // of the rows of unanswered entries, by ticket
	onWay   uint64                           // their sum
}

// region is the part of the buffer area of one entry.
type region struct {
	from, to uint64
	ticket   uint64
	answered bool // free after the completion
}

// Dial opens a session. Versions that hello leaves zero are those of this package.
func Dial(ctx context.Context, socket string, hello agentproto.Hello) (_ *Client, err error) {
	if hello.Oldest == 0 && hello.Newest == 0 {
		hello.Oldest, hello.Newest = agentproto.Version, agentproto.Version
	}
	message, err := hello.Marshal()
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return nil, fmt.Errorf("agent at %s: %w: is 'libra agent' running?", socket, err)
	}
	c := &Client{conn: conn.(*net.UnixConn), socket: socket}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.conn.Close())
		}
	}()
	if c.raw, err = c.conn.SyscallConn(); err != nil {
		return nil, err
	}
	defer c.bound(ctx)()
	if _, err := c.conn.Write(message); err != nil {
		return nil, fmt.Errorf("agent at %s: %w", socket, err)
	}
	welcome, memory, err := agentproto.ReceiveAnswer(c.conn)
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	mem, err := agentproto.OpenMemory(int(memory.Fd()), welcome.Layout)
	c.begin(welcome, mem)
	return c, err
}

// begin sends HELLO and reads the answer.
func (c *Client) begin(welcome *agentproto.Welcome, mem *agentproto.Memory) {
	c.welcome, c.mem = welcome, mem
	c.done = map[uint64]agentproto.Completion{}
	c.floats = map[uint64]uint64{}
	c.idle.Limit = sys.DefaultLook
}

// bound limits reads of the socket to the context, until the returned function is called.
func (c *Client) bound(ctx context.Context) (stop func()) {
	ended := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	return func() {
		if !ended() {
			_ = c.conn.SetReadDeadline(time.Time{})
		}
	}
}

// Welcome returns the agent's answer.
func (c *Client) Welcome() agentproto.Welcome { return *c.welcome }

// Memory returns the shared memory.
func (c *Client) Memory() *agentproto.Memory { return c.mem }

// Conn returns the session's socket.
func (c *Client) Conn() *net.UnixConn { return c.conn }

// Wake sends the agent a wake-up.
func (c *Client) Wake() { _ = c.raw.Control(func(fd uintptr) { agentproto.Wake(int(fd)) }) }

// Close ends the session.
func (c *Client) Close() error { return errors.Join(c.conn.Close(), c.mem.Close()) }

// Submit puts an entry into the ring, waiting for room, and returns its ticket.
func (c *Client) Submit(ctx context.Context, e agentproto.Entry) (ticket uint64, err error) {
	for c.tail-c.head >= c.welcome.Layout.Entries {
		if err := c.read(ctx); err != nil {
			return 0, err
		}
	}
	e.Put(c.mem.Entry(c.tail))
	c.floats[c.tickets] = uint64(e.N) * uint64(e.Dim)
	c.onWay += c.floats[c.tickets]
	c.tail++
	c.mem.SQTail.Store(c.tail)
	if c.mem.AgentSleeps.Load() == 1 && c.mem.AgentSleeps.CompareAndSwap(1, 0) {
		c.Wake()
	}
	c.tickets++
	return c.tickets - 1, nil
}

// Wait returns the completion of a ticket. The error reports why there is none; a failure of the
// entry is in the completion.
func (c *Client) Wait(ctx context.Context, ticket uint64) (agentproto.Completion, error) {
	for {
		if got, ok := c.done[ticket]; ok {
			delete(c.done, ticket)
			return got, nil
		}
		if err := c.read(ctx); err != nil {
			return agentproto.Completion{}, err
		}
	}
}

// lookFloats is the limit of pending floats up to which a client polls for completions before it
// sleeps. More keep agent and server busy for longer than it takes to wake a client, and they need
// its processor.
const lookFloats = 1 << 14

// read reads the available completions, and waits for some if there are none.
func (c *Client) read(ctx context.Context) error {
	for !c.collect() {
		if err := c.mem.Ended(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if c.onWay <= lookFloats && c.idle.Again() {
			continue
		}
		c.mem.ClientSleeps.Store(1)
		var err error
		if c.mem.CQTail.Load() == c.head && c.mem.EndCode.Load() == 0 {
			err = c.sleep()
		}
		c.mem.ClientSleeps.Store(0)
		if err != nil {
			if c.collect() { // its last completions
				return nil
			}
			return c.gone(err)
		}
	}
	return nil
}

// lookAtContext is the maximum duration of a sleep.
const lookAtContext = 50 * time.Millisecond

// sleep waits for a wake-up or the end of the socket, in system calls: waiting through the runtime
// takes longer.
func (c *Client) sleep() error {
	var failed error
	err := c.raw.Control(func(fd uintptr) {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if c.Alone {
			_, _ = sys.PollAlone(fds[:], lookAtContext)
		} else {
			_, _ = unix.Poll(fds[:], int(lookAtContext/time.Millisecond))
		}
		var b [8]byte
		switch n, err := sys.ReceiveNow(int(fd), b[:]); { // reads what the poll found
		case err == nil && n == 0:
			failed = io.EOF
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		default:
			failed = err
		}
	})
	return errors.Join(err, failed)
}

// gone returns why the agent's end of the socket is closed.
func (c *Client) gone(err error) error {
	if why := c.mem.Ended(); why != nil {
		return why
	}
	return fmt.Errorf("agent: the agent at %s (process %d) has gone: %w", c.socket, c.welcome.PID, err)
}

// collect reads completions, and returns whether there were any.
func (c *Client) collect() bool {
	tail := c.mem.CQTail.Load()
	if tail == c.head {
		return false
	}
	for ; c.head != tail; c.head++ {
		got := agentproto.ParseCompletion(c.mem.Completion(c.head))
		c.done[got.Ticket] = got
		c.onWay -= c.floats[got.Ticket]
		delete(c.floats, got.Ticket)
		for i := range c.regions {
			if c.regions[i].ticket == got.Ticket {
				c.regions[i].answered = false
			}
		}
	}
	c.mem.CQHead.Store(c.head)
	c.idle.Found()
	return true
}

// place waits for room in the buffer area for the next entry. It takes the first that fits, as the
// C library does: so few pages are used, which stay in the cache.
func (c *Client) place(ctx context.Context, bytes uint64, answered bool) (at uint64, err error) {
	size := c.welcome.Layout.BufferBytes
	bytes = (bytes + 63) &^ 63
	if bytes > size {
		return 0, fmt.Errorf("agent: %d bytes do not fit the buffer area of %d", bytes, size)
	}
	for {
		c.recycle()
		for at = 0; at+bytes <= size; {
			used := slices.IndexFunc(c.regions, func(r region) bool { return at < r.to && r.from < at+bytes })
			if used < 0 {
				c.regions = append(c.regions, region{from: at, to: at + bytes, ticket: c.tickets, answered: answered})
				return at, nil
			}
			at = c.regions[used].to
		}
		if err := c.read(ctx); err != nil {
			return 0, err
		}
	}
}

// recycle removes the regions that are free again, and the region of an entry that was not
// submitted because its context ended.
func (c *Client) recycle() {
	read := c.tickets - uint64(c.tail-c.mem.SQHead.Load())
	c.regions = slices.DeleteFunc(c.regions, func(r region) bool {
		return r.ticket == c.tickets || !r.answered && r.ticket < read
	})
}

// Push copies a batch into shared memory and submits it.
func (c *Client) Push(ctx context.Context, keys []uint64, grads []float32) (ticket uint64, err error) {
	at, err := c.place(ctx, uint64(8*len(keys)+4*len(grads)), false)
	if err != nil {
		return 0, err
	}
	copy(c.mem.Keys(at, len(keys)), keys)
	values := at + uint64(8*len(keys))
	copy(c.mem.Floats(values, len(grads)), grads)
	return c.Submit(ctx, agentproto.Entry{Op: agentproto.Push, Dim: c.welcome.Dim, Keys: at, Values: values,
		N: uint32(len(keys))})
}

// PushPrepared is Push of a prepared batch of n keys.
func (c *Client) PushPrepared(ctx context.Context, handle uint64, n int, grads []float32) (ticket uint64, err error) {
	at, err := c.place(ctx, uint64(4*len(grads)), false)
	if err != nil {
		return 0, err
	}
	copy(c.mem.Floats(at, len(grads)), grads)
	return c.Submit(ctx, agentproto.Entry{Op: agentproto.Push, Dim: c.welcome.Dim, Batch: handle, Values: at,
		N: uint32(n)})
}

// Pull reads rows.
func (c *Client) Pull(ctx context.Context, keys []uint64, rows []float32) error {
	at, err := c.place(ctx, uint64(8*len(keys)+4*len(rows)), true)
	if err != nil {
		return err
	}
	copy(c.mem.Keys(at, len(keys)), keys)
	values := at + uint64(8*len(keys))
	_, err = c.call(ctx, agentproto.Entry{Op: agentproto.Pull, Dim: c.welcome.Dim, Keys: at, Values: values,
		N: uint32(len(keys))})
	if err == nil {
		copy(rows, c.mem.Floats(values, len(rows)))
	}
	return err
}

// PushSums pushes, and reads the sums of hot rows.
func (c *Client) PushSums(ctx context.Context, keys []uint64, grads []float32) error {
	at, err := c.place(ctx, uint64(8*len(keys)+4*len(grads)), true)
	if err != nil {
		return err
	}
	copy(c.mem.Keys(at, len(keys)), keys)
	values := at + uint64(8*len(keys))
	copy(c.mem.Floats(values, len(grads)), grads)
	e := agentproto.Entry{Op: agentproto.PushSums, Dim: c.welcome.Dim, Keys: at, Values: values, Sums: values,
		N: uint32(len(keys))}
	_, err = c.call(ctx, e)
	if err == nil {
		copy(grads, c.mem.Floats(values, len(grads)))
	}
	return err
}

// Prepare returns the handle of a prepared batch.
func (c *Client) Prepare(ctx context.Context, keys []uint64) (handle uint64, err error) {
	at, err := c.place(ctx, uint64(8*len(keys)), false)
	if err != nil {
		return 0, err
	}
	copy(c.mem.Keys(at, len(keys)), keys)
	got, err := c.call(ctx, agentproto.Entry{Op: agentproto.Prepare, Keys: at, N: uint32(len(keys))})
	return got.Detail, err
}

// Release frees a prepared batch.
func (c *Client) Release(ctx context.Context, handle uint64) error {
	_, err := c.call(ctx, agentproto.Entry{Op: agentproto.Release, Batch: handle})
	return err
}

// Flush waits until all pushes are acknowledged.
func (c *Client) Flush(ctx context.Context) error {
	_, err := c.call(ctx, agentproto.Entry{Op: agentproto.Flush})
	return err
}

// Barrier meets the other parties at the end of a step.
func (c *Client) Barrier(ctx context.Context, step uint64) error {
	_, err := c.call(ctx, agentproto.Entry{Op: agentproto.Barrier, Step: step})
	return err
}

// Reduce is Barrier, and returns the sums of the step: keys, and Dim floats for each.
func (c *Client) Reduce(ctx context.Context, step uint64) (keys []uint64, sums []float32, err error) {
	got, err := c.call(ctx, agentproto.Entry{Op: agentproto.Reduce, Step: step})
	if err != nil {
		return nil, nil, err
	}
	return c.allSums(ctx, got.Detail)
}

// Harvest returns the next harvest of the job that the client owns, and acknowledges the one
// before: keys, and Dim floats for each. now does not wait for the end of the harvest period.
func (c *Client) Harvest(ctx context.Context, now bool) (keys []uint64, sums []float32, err error) {
	e := agentproto.Entry{Op: agentproto.Harvest}
	if now {
		e.Step = agentproto.Now
	}
	got, err := c.call(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	return c.allSums(ctx, got.Detail)
}

// allSums copies all rows of the last Reduce or Harvest.
func (c *Client) allSums(ctx context.Context, n uint64) (keys []uint64, sums []float32, err error) {
	row := 8 + 4*uint64(c.welcome.Dim)
	keys, sums = make([]uint64, n), make([]float32, n*uint64(c.welcome.Dim))
	for first := uint64(0); first < n; {
		part := min(n-first, max(1, c.welcome.Layout.BufferBytes/row))
		if err := c.Sums(ctx, first, keys[first:first+part],
			sums[first*uint64(c.welcome.Dim):(first+part)*uint64(c.welcome.Dim)]); err != nil {
			return nil, nil, err
		}
		first += part
	}
	return keys, sums, nil
}

// Sums copies rows of the last Reduce or Harvest, from the first on.
func (c *Client) Sums(ctx context.Context, first uint64, keys []uint64, sums []float32) error {
	at, err := c.place(ctx, uint64(8*len(keys)+4*len(sums)), true)
	if err != nil {
		return err
	}
	values := at + uint64(8*len(keys))
	_, err = c.call(ctx, agentproto.Entry{Op: agentproto.Sums, Dim: c.welcome.Dim, Keys: at, Values: values,
		N: uint32(len(keys)), Step: first})
	if err == nil {
		copy(keys, c.mem.Keys(at, len(keys)))
		copy(sums, c.mem.Floats(values, len(sums)))
	}
	return err
}

// Stats returns the 16 numbers of the statistics.
func (c *Client) Stats(ctx context.Context) (stats [agentproto.StatsLen / 8]uint64, err error) {
	at, err := c.place(ctx, agentproto.StatsLen, true)
	if err != nil {
		return stats, err
	}
	_, err = c.call(ctx, agentproto.Entry{Op: agentproto.Stats, Values: at})
	copy(stats[:], c.mem.Words(at, len(stats)))
	return stats, err
}

// call submits an entry and waits for its completion. If the entry fails, the error is a [*Failed].
func (c *Client) call(ctx context.Context, e agentproto.Entry) (agentproto.Completion, error) {
	ticket, err := c.Submit(ctx, e)
	if err != nil {
		return agentproto.Completion{}, err
	}
	got, err := c.Wait(ctx, ticket)
	if err == nil && got.Status != agentproto.OK {
		err = &Failed{got, aggregator.Mode(c.welcome.Mode)}
	}
	return got, err
}

// Failed is the completion of a failed entry.
type Failed struct {
	agentproto.Completion
	Mode aggregator.Mode // the job's
}

// Error names the operation, the reason, and what is known of the row, the peer and the party.
func (f *Failed) Error() string {
	if f.Status == agentproto.Dropped && f.Refusal != 0 {
		return fmt.Sprintf("agent: %v: the step was dropped for all: the sum of key %d is too large for a float32: "+
			"send smaller numbers", f.Op, f.Key)
	}
	text := fmt.Sprintf("agent: %v: %v", f.Op, f.Status)
	if f.KeyKnown {
		text += fmt.Sprintf(", key %d", f.Key)
	}
	switch code := wire.Code(f.Refusal); {
	case f.Status == agentproto.PartyGone && f.Detail != 0:
		client, pid := f.Party()
		text += fmt.Sprintf(" (it was process %d, client %d in the agent's log)", pid, client)
	case f.Status == agentproto.BadMode:
		text += fmt.Sprintf(" (it is %v)", f.Mode)
	case f.Status == agentproto.BadStep:
		text += fmt.Sprintf(" (step %d is due)", f.Detail)
	case f.Status == agentproto.Refused && code != 0:
		text = strings.Replace(text, f.Status.Error(), fmt.Sprintf("the %v refused a frame: %v", f.Peer, code), 1)
		if remedy := code.Remedy(); remedy != "" {
			text += ": " + remedy
		}
	case f.Status == agentproto.Refused:
		text = strings.Replace(text, f.Status.Error(), "this host could not meet the other workers of the job: the agent's log has the reason", 1)
	}
	return text
}

// Unwrap returns the code.
func (f *Failed) Unwrap() error { return f.Status }
