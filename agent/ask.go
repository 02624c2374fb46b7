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

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/telemetry"
)

// Code is one of the codes of docs/agent.md.
type Code uint32

func (c Code) String() string { return agentproto.Code(c).Error() }

// Stats holds the counters of an agent.
type Stats struct {
	Refused map[Code]uint64 `json:"refused,omitempty"` // clients that were not admitted, by code
	Jobs    []JobStats      `json:"jobs"`
}

// JobStats holds the counters of one job.
type JobStats struct {
	Name    string          `json:"name"`
	Memory  int64           `json:"memory_bytes"`    // of sessions, including ended ones with pushes in flight
	Ended   map[Code]uint64 `json:"ended,omitempty"` // sessions by code; 0 counts clients that closed their socket or died
	Clients []ClientStats   `json:"clients"`

	// PairsSent counts gradients of hot rows sent to the aggregator, including sums. PairsAdded
	// counts those that were added up into sums.
	PairsSent  uint64 `json:"hot_pairs_sent"`
	PairsAdded uint64 `json:"hot_pairs_added"`
	// Vanished counts gradients that the job's unit rounds to 0.
	Vanished uint64 `json:"gradients_vanished"`
	// LogBytes is the memory of hot frames that the server does not have yet (job.replay_mib),
	// LogWaits counts how often a push has waited for room there. Settled are hot frames sent to the
	// server because the aggregator was lost.
	LogBytes int    `json:"hot_log_bytes"`
	LogWaits uint64 `json:"hot_log_waits"`
	Settled  uint64 `json:"hot_frames_settled"`

	// Learning is the number of running 'libra hotset learn'.
	Learning int `json:"learning"`

	// Latencies are the times of drawn frames and pushes of the job's worker.
	Latencies []telemetry.Summary `json:"latencies,omitempty"`
}

// ClientStats holds the counters of one client.
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
	// FailedBy counts failed pushes by code.
	FailedBy   map[Code]uint64 `json:"failed_by,omitempty"`
	KeysPushed uint64          `json:"keys_pushed"`
	Pulls      uint64          `json:"pulls"`
	KeysPulled uint64          `json:"keys_pulled"`
}

// Ask asks the agent at a socket for its statistics; "" is the default socket of [Config]. Only
// root and the agent's user may ask. Errors include a remedy.
func Ask(ctx context.Context, socket string) (s Stats, err error) {
	err = exchange(ctx, socket, &s, func(conn net.Conn) error {
		_, err := conn.Write(agentproto.MarshalAsk())
		return err
	})
	return s, err
}

// Learned holds the counts of the keys that the clients of a job push.
type Learned struct {
	Job      string   `json:"job"`
	Dim      int      `json:"dim"`
	Pushes   uint64   `json:"pushes"`    // during the count
	Sampled  uint64   `json:"sampled"`   // pushes whose keys were counted
	Updates  uint64   `json:"updates"`   // keys counted
	CountErr uint64   `json:"count_err"` // a count is too high by at most this
	Keys     []uint64 `json:"keys"`      // in descending order of counts; as many as a job may have, and [MaxLearned] at most
	Counts   []uint64 `json:"counts"`
}

// Ranking returns the counts as input for heat.Principle.
func (l *Learned) Ranking() heat.Ranking {
	r := heat.Ranking{Updates: l.Updates, Err: l.CountErr}
	for i, key := range l.Keys {
		r.Counts = append(r.Counts, heat.Count{Key: key, Updates: l.Counts[i]})
	}
	return r
}

// MaxCounters is the largest number of counters of [Learn], 2^22.
const MaxCounters = agentproto.MaxCounters

// MaxLearned is the largest number of keys of [Learned], 2^19.
const MaxLearned = agentproto.MaxLearned

// Learn makes the agent at a socket count the keys that clients of a job push, until a context
// ends. counters is 1 to [MaxCounters], several times the number of hot rows; for its memory see
// heat.SpaceSaving. job may be "" if the agent has one job. Only root and the agent's user may
// learn. ctx also bounds the wait for the answer.
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
		stop = context.AfterFunc(until, func() {
			_, _ = conn.Write(agentproto.MarshalAsk()) // an error shows when the answer is read
		})
		return nil
	})
	stop() // until may outlast an agent that refuses
	return l, err
}

// exchange sends a request to the agent at a socket, and decodes the answer.
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
		text, err = readAnswer(conn)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("agent at %s accepts connections but does not answer: %w: "+
			"is it stopped, or does a different program listen there?", socket, err)
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("agent at %s: %w", socket, err)
	}
	return nil
}

func readAnswer(conn net.Conn) (text []byte, err error) {
	var b [agentproto.AnswerPart]byte
	n, err := conn.Read(b[:])
	if errors.Is(err, syscall.ECONNRESET) {
		// The agent closed the connection with unread data; its earlier answer can still be read.
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

func answerMessages(text []byte) (messages [][]byte) {
	return slices.AppendSeq([][]byte{agentproto.MarshalTold(len(text))}, slices.Chunk(text, agentproto.AnswerPart))
}
