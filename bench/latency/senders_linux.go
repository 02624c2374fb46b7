// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/baselines"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

const (
	senderJob   = 1
	senderEpoch = 1
	answerLimit = 30 * time.Second
)

// frameLen is the payload of a frame with one row.
var frameLen = wire.ColdLen(1, rowDim)

// measureSenders sends frames of one row from as many sockets as there are senders, in turn, and
// returns the CPU time of the server's thread for each frame.
func measureSenders(ctx context.Context, senders, frames int) (s SenderSample, err error) {
	l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		return s, err
	}
	exp := aggregator.DefaultExp(aggregator.Exact)
	store, err := ps.New(ps.Config{Dim: rowDim, Exp: exp, Optimizer: ps.Optimizer{Method: ps.SGD}})
	if err != nil {
		return s, errors.Join(err, l.Close())
	}
	// Without polling: its time is not that of frames.
	cfg := transport.ServerConfig{Link: l, Job: senderJob, Dim: rowDim, Handler: store, Look: -1}
	server, err := transport.NewServer(cfg)
	if err != nil {
		return s, errors.Join(err, l.Close())
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	thread := 0
	if err := server.Do(ctx, func() {
		runtime.LockOSThread() // until the goroutine ends
		thread = unix.Gettid()
	}); err != nil {
		return s, err
	}
	var all []*net.UDPConn
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.Close())
		}
	}()
	for i := range senders {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.Local().AddrPort()))
		if err != nil {
			return s, err
		}
		all = append(all, c)
		if err := server.Admit(ctx, uint16(i+1), c.LocalAddr().(*net.UDPAddr).AddrPort(), senderEpoch); err != nil {
			return s, err
		}
	}
	round := newRound(all)
	if err := round.send(ctx, senders); err != nil { // the first frame of each
		return s, err
	}
	before, err := sys.TaskTime(thread)
	if err != nil {
		return s, err
	}
	if err := round.send(ctx, frames); err != nil {
		return s, err
	}
	after, err := sys.TaskTime(thread)
	if err != nil {
		return s, err
	}
	return SenderSample{Nanoseconds: float64(after-before) / float64(frames)}, nil
}

// round sends frames of all senders in turn.
type round struct {
	senders []*net.UDPConn
	numbers []uint32 // of their last frames
	next    int
	frame   []byte
	answer  []byte
}

func newRound(senders []*net.UDPConn) *round {
	r := &round{senders: senders, numbers: make([]uint32, len(senders)), frame: make([]byte, frameLen),
		answer: make([]byte, 64)}
	rows := wire.PutRows(r.frame, wire.TypeCold, 1, rowDim)
	rows.SetKey(0, 7)
	for i := range r.numbers {
		r.numbers[i] = wire.FirstSeq - 1
	}
	return r
}

// send sends frames, as many at a time as may be in flight, and waits for their answers.
func (r *round) send(ctx context.Context, frames int) error {
	for frames > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := min(frames, inFlight)
		first := r.next
		for range n {
			at := r.next % len(r.senders)
			r.next++
			r.numbers[at]++
			h := wire.Header{Type: wire.TypeCold, Job: senderJob, Sender: uint16(at + 1), Epoch: senderEpoch, Seq: r.numbers[at]}
			h.Put(r.frame)
			if _, err := r.senders[at].Write(r.frame); err != nil {
				return err
			}
		}
		for i := range n {
			c := r.senders[(first+i)%len(r.senders)]
			if err := c.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
				return err
			}
			got, err := c.Read(r.answer)
			if err != nil {
				return fmt.Errorf("no answer to a frame: %w", err)
			}
			if h, err := wire.ParseHeader(r.answer[:got]); err != nil || h.Type != wire.TypeAck {
				return fmt.Errorf("a frame is answered with %+v, %w", h, err)
			}
		}
		frames -= n
	}
	return nil
}

// measureConnections has the baseline send as many requests over as many connections.
func measureConnections(ctx context.Context, program *baselines.Executable, connections, frames int) (s SenderSample,
	err error) {
	args := []string{strconv.Itoa(connections), strconv.Itoa(frames), strconv.Itoa(frameLen)}
	cmd := exec.CommandContext(ctx, program.Path(), args...)
	proc.DieWithParent(cmd)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return s, fmt.Errorf("the ZeroMQ baseline: %w", errors.Join(context.Cause(ctx), err))
	}
	var got struct {
		CPU float64 `json:"cpu_ns"`
	}
	if err := json.Unmarshal(out, &got); err != nil || got.CPU <= 0 {
		return s, fmt.Errorf("the ZeroMQ baseline says %q: %w", out, err)
	}
	return SenderSample{Nanoseconds: got.CPU / float64(frames)}, nil
}
