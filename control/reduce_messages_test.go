// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

// Messages of sums hold as many rows as their bound allows, and there is none without rows but for
// a step that has none.
func TestMessagesOfSums(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const full = 721 // rows of 8 bytes and 9 floats in 31 KB
		rows := []int{0, 2 * full, 2*full + 1}
		s := startServer(t, sync5, func(c *ParameterServerConfig) {
			c.Workers = []uint16{1}
			c.Reduce = func(_ context.Context, step uint64, _ bool) (Sums, error) {
				return Sums{Keys: make([]uint64, rows[step]), Rows: make([]float32, reducedDim*rows[step])}, nil
			}
		})
		s.waits(t)
		one := s.worker(t, 1)
		if err := one.join(t); err != nil {
			t.Fatal(err)
		}
		for step, want := range [][]int{{0}, {full, full}, {full, full, 1}} {
			stream, err := one.Reduce(t.Context(), &pb.ReduceRequest{Job: 5, Sender: 1, Token: one.member.GetToken(), Step: uint64(step)})
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for m, err := stream.Recv(); err == nil && len(got) <= len(want); m, err = stream.Recv() {
				got = append(got, len(m.Keys)/8)
				if size := proto.Size(m); size > 32<<10 || m.Rows != uint64(rows[step]) {
					t.Errorf("a message of %d bytes announces %d rows, want %d", size, m.Rows, rows[step])
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d rows are sent as %v, want %v", rows[step], got, want)
			}
		}
		if err := errors.Join(one.done(t), one.leave(t)); err != nil {
			t.Error(err)
		}
	})
}

// broken is a stream of no server, whose other side has gone.
type broken struct {
	grpc.ServerStream
	sent int
}

func (*broken) Context() context.Context { return context.Background() }

func (b *broken) SendMsg(any) error {
	b.sent++
	return grpctest.ErrCut
}

// Sums that cannot be encoded are an error and not an empty step, and a stream that breaks ends the
// answer.
func TestSumsThatCannotBeSent(t *testing.T) {
	var stream broken
	if err := new(roundSums).sendRows(&stream, 1); !contains(err, "rpcInfo") || stream.sent != 0 {
		t.Errorf("%v, and %d messages are sent", err, stream.sent)
	}
	encoded := roundSums{encoded: make([]*grpc.PreparedMsg, 3)}
	encoded.once.Do(func() {})
	if err := encoded.sendRows(&stream, 1); !errors.Is(err, grpctest.ErrCut) || stream.sent != 1 {
		t.Errorf("%v, after %d messages", err, stream.sent)
	}
}

// told returns a message that announces rows, with that many bytes of keys and of sums.
func told(rows uint64, keys, sums int) *pb.ReducedRows {
	return &pb.ReducedRows{Rows: rows, Keys: make([]byte, keys), Sums: make([]byte, sums)}
}

// What is no row, or one more than announced, is refused.
func TestReceivedSumsAreRefused(t *testing.T) {
	for want, messages := range map[string][]*pb.ReducedRows{
		"sent 9 bytes of keys and 8 bytes of sums, for rows of 2 floats":   {told(9, 9, 8)},
		"sent 8 bytes of keys and 12 bytes of sums, for rows of 2 floats":  {told(9, 8, 12)},
		"sent 16 bytes of keys and 16 bytes of sums, for rows of 2 floats": {told(1, 16, 16)},
		"sent 8 bytes of keys and 8 bytes of sums, for rows of 2 floats":   {told(1, 8, 8), told(1, 8, 8)},
	} {
		if got, err := ReceiveSums(&toldSums{messages: messages}, 2); !contains(err, want) || got.Keys != nil {
			t.Errorf("%v with %v, want %q", got.Keys, err, want)
		}
	}
}

// Room for all rows is made with the first one, but not for more than are likely to come.
func TestRoomForReceivedSums(t *testing.T) {
	const dim = 1 << 14
	for announced, want := range map[uint64]int{100: 100, math.MaxUint64: 1 << 10} {
		got, err := ReceiveSums(&toldSums{messages: []*pb.ReducedRows{told(announced, 8, 4*dim)}}, dim)
		if err != nil || cap(got.Keys) != want || cap(got.Rows) != want*dim {
			t.Errorf("%d rows announced: room for %d keys and %d floats, want %d rows of %d; %v", announced, cap(got.Keys), cap(got.Rows), want, dim, err)
		}
	}
	if got, err := ReceiveSums(&toldSums{messages: []*pb.ReducedRows{told(100, 0, 0)}}, dim); err != nil || got.Keys != nil {
		t.Errorf("room for %d rows, none of which came; %v", cap(got.Keys), err)
	}
}
