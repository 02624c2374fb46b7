// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"

	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/packer/heat"
)

// Code is one of the codes of docs/agent.md.
type Code uint32

// String returns the code's text.
func (c Code) String() string { return agentproto.Code(c).Error() }

// Stats is what an agent has done.
type Stats struct {
	Refused map[Code]uint64 `json:"refused,omitempty"` // clients that were not admitted, by code
	Jobs    []JobStats      `json:"jobs"`
}

// JobStats are those of one job.
type JobStats struct {
	Name    string          `json:"name"`
	Memory  int64           `json:"memory_bytes"`    // of sessions, those included that have ended and have pushes on their way
	Ended   map[Code]uint64 `json:"ended,omitempty"` // sessions by code; 0 counts those whose client closed its socket or died
	Clients []ClientStats   `json:"clients"`

	// PairsSent are the gradients of hot rows that were sent to the aggregator, sums among them. PairsAdded are those of pushes that
	// went into sums.
	PairsSent  uint64 `json:"hot_pairs_sent"`
	PairsAdded uint64 `json:"hot_pairs_added"`

	// Learning is how many 'libra hotset learn' have keys counted.
	Learning int `json:"learning"`
}

// ClientStats are those of one client.
type ClientStats struct {
	Client       uint32 `json:"client"`
	Name         string `json:"name"`
	User         uint32 `json:"user"`
	Process      int32  `json:"process"`
	Memory       uint64 `json:"memory_bytes"`
	InFlight     int64  `json:"in_flight_bytes"`
	Prepared     uint64 `json:"prepared_bytes"`
	Pushes       uint64 `json:"pushes"`
	Acknowledged uint64 `json:"acknowledged"`
	Failed       uint64 `json:"failed"`
	// FailedBy are the failed pushes by code.
	FailedBy   map[Code]uint64 `json:"failed_by,omitempty"`
	KeysPushed uint64          `json:"keys_pushed"`
	Pulls      uint64          `json:"pulls"`
	KeysPulled uint64          `json:"keys_pulled"`
}

// Ask asks the agent at a socket for its statistics; "" is the socket of [Config]. An agent tells them to root and to its own
// user. The error tells what to do.
func Ask(ctx context.Context, socket string) (s Stats, err error) {
	err = exchange(ctx, socket, &s, func(conn net.Conn) error {
		_, err := conn.Write(agentproto.MarshalAsk())
		return err
	})
	return s, err
}

// Learned is what was learnt of the keys that the clients of a job push.
type Learned struct {
	Job      string   `json:"job"`
	Dim      int      `json:"dim"`
	Pushes   uint64   `json:"pushes"`    // that came meanwhile
	Sampled  uint64   `json:"sampled"`   // those of them whose keys were counted
	Updates  uint64   `json:"updates"`   // keys in them
	CountErr uint64   `json:"count_err"` // a count is at most this much too high
	Keys     []uint64 `json:"keys"`      // the most frequent first
	Counts   []uint64 `json:"counts"`
}

// Ranking returns the counts as heat.Principle takes them.
func (l *Learned) Ranking() heat.Ranking {
	r := heat.Ranking{Updates: l.Updates, Err: l.CountErr}
	for i, key := range l.Keys {
		r.Counts = append(r.Counts, heat.Count{Key: key, Updates: l.Counts[i]})
	}
	return r
}

// MaxCounters is the largest number of counters of [Learn].
const MaxCounters = agentproto.MaxCounters

// Learn has the agent at a socket count the keys that clients of a job push, until a context ends: with a number of counters, 1 to
// [MaxCounters], in memory that heat.SpaceSaving tells; several times as many as there will be hot rows.
// job may be "" if the agent has one job. Like Ask, it is for root and the agent's own user. ctx bounds
// the answer, too.
func Learn(ctx, until context.Context, socket, job string, counters int) (l Learned, err error) {
	ask := agentproto.Learn{Counters: uint32(min(counters, MaxCounters+1)), Job: job}
	message, err := ask.Marshal()
	if err != nil {
		return l, err
	}
	stop := func() bool { return true }
	err = exchange(ctx, socket, &l, func(conn net.Conn) error {
		if _, err := conn.Write(message); err != nil {
			return err
		}
		stop = context.AfterFunc(until, func() { _, _ = conn.Write(agentproto.MarshalAsk()) }) // what fails is seen when the answer is read
		return nil
	})
	stop() // until may last longer than an agent that refuses
	return l, err
}

// exchange asks the agent at a socket, by a function, and reads the answer into a value.
func exchange(ctx context.Context, socket string, into any, ask func(net.Conn) error) error {
	if socket == "" {
		socket = agentproto.DefaultSocket
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return fmt.Errorf("agent at %s: %w: is 'libra agent' running, and is the path right?", socket, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	err = ask(conn)
	var text []byte
	if err == nil {
		text, err = answer(conn)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("agent at %s takes connections but does not answer: %w: is it stopped, or is another program there?", socket, err)
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("agent at %s: %w", socket, err)
	}
	return nil
}

// answer returns the text of the answer.
func answer(conn net.Conn) (text []byte, err error) {
	var b [agentproto.AnswerPart]byte
	n, err := conn.Read(b[:])
	if errors.Is(err, syscall.ECONNRESET) { // it has closed the connection without reading all; what it wrote before comes after this
		n, err = conn.Read(b[:])
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it has closed the connection")
	}
	if err != nil {
		return nil, err
	}
	length, err := agentproto.ParseTold(b[:n])
	for err == nil && uint64(len(text)) < length {
		n, err = conn.Read(b[:])
		text = append(text, b[:n]...)
	}
	return text, err
}

// parts are the messages of an answer.
func parts(text []byte) (messages [][]byte) {
	return slices.AppendSeq([][]byte{agentproto.MarshalTold(len(text))}, slices.Chunk(text, agentproto.AnswerPart))
}
