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

	"github.com/libra-ina/libra/internal/agentproto"
)

// Stats is what an agent has done. Codes are those of docs/agent.md.
type Stats struct {
	Refused map[agentproto.Code]uint64 `json:"refused,omitempty"` // clients that were not admitted, by code
	Jobs    []JobStats                 `json:"jobs"`
}

// JobStats are those of one job.
type JobStats struct {
	Name    string                     `json:"name"`
	Memory  int64                      `json:"memory_bytes"`    // of sessions, those included that have ended and have pushes on their way
	Ended   map[agentproto.Code]uint64 `json:"ended,omitempty"` // sessions by code; 0 counts those whose client closed its socket or died
	Clients []ClientStats              `json:"clients"`

	// PairsSent are the gradients of hot rows that were sent to the aggregator, sums among them. PairsAdded are those of pushes that
	// went into sums.
	PairsSent  uint64 `json:"hot_pairs_sent"`
	PairsAdded uint64 `json:"hot_pairs_added"`
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
	FailedBy   map[agentproto.Code]uint64 `json:"failed_by,omitempty"`
	KeysPushed uint64                     `json:"keys_pushed"`
	Pulls      uint64                     `json:"pulls"`
	KeysPulled uint64                     `json:"keys_pulled"`
}

// Ask asks the agent at a socket for its statistics; "" is the socket of [Config]. An agent tells them to root and to its own
// user. The error tells what to do.
func Ask(ctx context.Context, socket string) (s Stats, err error) {
	if socket == "" {
		socket = agentproto.DefaultSocket
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return s, fmt.Errorf("agent at %s: %w: is 'libra agent' running, and is the path right?", socket, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	text, err := ask(conn)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return s, fmt.Errorf("agent at %s: %w", socket, err)
	}
	return s, nil
}

// ask returns the text of the answer.
func ask(conn net.Conn) (text []byte, err error) {
	if _, err := conn.Write(agentproto.MarshalAsk()); err != nil {
		return nil, err
	}
	var b [agentproto.AnswerPart]byte
	n, err := conn.Read(b[:])
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
