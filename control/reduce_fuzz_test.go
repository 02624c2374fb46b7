// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/binary"
	"io"
	"math"
	"testing"

	"google.golang.org/grpc"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// toldSums is a stream that ends after its messages.
type toldSums struct {
	grpc.ServerStreamingClient[pb.ReducedRows]
	messages []*pb.ReducedRows
}

func (s *toldSums) Recv() (*pb.ReducedRows, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	return m, nil
}

// Whatever a server sends, the result is as many rows of sums as keys, or an error.
func FuzzReceiveSums(f *testing.F) {
	f.Add(uint64(3), 8, 4, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add(uint64(math.MaxUint64), 8, 4, make([]byte, 24))
	f.Fuzz(func(t *testing.T, rows uint64, keys, sums int, text []byte) {
		const dim = 1
		s := &toldSums{}
		for keys, sums = keys&31, sums&31; len(text) > 0 && len(s.messages) < 100; rows = rows*0x9e3779b97f4a7c15 + 1 {
			m := &pb.ReducedRows{Rows: rows >> (keys + sums)}
			m.Keys, text = text[:min(keys, len(text))], text[min(keys, len(text)):]
			m.Sums, text = text[:min(sums, len(text))], text[min(sums, len(text)):]
			s.messages = append(s.messages, m)
			if keys+sums == 0 {
				break
			}
		}
		sent := s.messages
		got, err := ReceiveSums(s, dim)
		if err != nil {
			return
		}
		if len(got.Rows) != dim*len(got.Keys) {
			t.Fatalf("%d keys with %d floats", len(got.Keys), len(got.Rows))
		}
		for _, m := range sent {
			for ; len(m.Keys) > 0; m.Keys, m.Sums = m.Keys[8:], m.Sums[4:] {
				if got.Keys[0] != binary.LittleEndian.Uint64(m.Keys) || math.Float32bits(got.Rows[0]) != binary.LittleEndian.Uint32(m.Sums) {
					t.Fatal("other rows than were sent")
				}
				got.Keys, got.Rows = got.Keys[1:], got.Rows[1:]
			}
		}
		if len(got.Keys) > 0 {
			t.Fatalf("%d rows were never sent", len(got.Keys))
		}
	})
}
