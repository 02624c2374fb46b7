// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

var testCodec = codec.Config{Bound: 10, Scale: -2}

// codedRow is a coded frame of one row, with key 42 or number 1 of numbering 0.
func codedRow(h wire.Header, kind wire.Type, row []float32) []byte {
	codes := newDecoder(testCodec).Append(nil, row)
	b := make([]byte, wire.CodedLen(kind, 1, len(codes)))
	h.Type, h.Flags = kind, h.Flags|wire.FlagCoded
	h.Put(b)
	rows, place := wire.PutCoded(b, kind, 1, len(row), 0)
	if copy(place, codes); kind == wire.TypeCold {
		rows.SetKey(0, 42)
	} else {
		rows.SetNumbers([]uint32{1})
	}
	return b
}

// TestCodedSums pushes in codes, over faulty links: aggregator and server hold what the codes of
// cold rows decode to, and hot rows exactly.
func TestCodedSums(t *testing.T) {
	for _, layout := range []packer.Layout{packer.LaneAligned, packer.Dense} {
		for name, build := range map[string]func(testing.TB, clusterOptions) fabric{"memory": memFabric, "udp": udpFabric} {
			t.Run(fmt.Sprint(layout, " ", name), func(t *testing.T) {
				ctx := deadline(t)
				o := clusterOptions{workers: 3, layout: layout, flow: hasty, codec: testCodec,
					faults: link.Faults{Drop: 0.01, Duplicate: 0.01, Reorder: 0.01}}
				c := newCluster(t, build(t, o), o)
				want := pushAll(ctx, t, c.workers, 1, 20, 400)
				if diff := cmp.Diff(want, c.sums()); diff != "" {
					t.Errorf("sums (-want +got):\n%s", diff)
				}
				st, err := c.server.Stats(ctx)
				if err != nil || st.Coded == 0 || st.Coded != st.Applied {
					t.Errorf("%d of %d frames were coded, %v", st.Coded, st.Applied, err)
				}
			})
		}
	}
}

// TestServerRefusesCodes sends coded frames with every kind of fault, and what is none.
func TestServerRefusesCodes(t *testing.T) {
	network := newMemNet()
	for i, config := range []codec.Config{{}, testCodec} {
		l := newLedger()
		s, err := NewServer(ServerConfig{Link: network.open(fmt.Sprintf("10.0.0.%d:19522", 1+i)), Job: testJob, Dim: testDim, Handler: l, Codec: config})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		c := client{t, network.open(fmt.Sprintf("10.0.1.%d:1000", 1+i)), s.link.Local()}
		if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
			t.Fatal(err)
		}
		h := wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch}
		good := []float32{0.5, 0, -7}
		row := func() []byte { return codedRow(h, wire.TypeCold, good) }
		const codes = wire.HeaderLen + 4 + 8
		edit := func(b []byte, at int, to byte) []byte { b[at] = to; return b }
		length := wire.Refusal{Code: wire.CodeLength, Value: wire.DefaultPayload}
		none, notFinite := wire.Refusal{}, wire.Refusal{Code: wire.CodeNotFinite, Index: 1}
		for _, f := range []struct {
			name   string
			make   func() []byte
			want   wire.Refusal
			always bool // without a codec, too
		}{
			{"good", row, none, false},
			{"floats", func() []byte { return cold(h, testDim, 1) }, none, true},
			{"cut", func() []byte { return row()[:len(row())-1] }, length, false},
			{"more", func() []byte { return append(row(), 0) }, length, false},
			{"no codes", func() []byte { return row()[:codes] }, length, false},
			{"no keys", func() []byte { return row()[:wire.HeaderLen+4] }, length, false},
			{"no head", func() []byte { return row()[:wire.HeaderLen+3] }, length, false},
			{"an empty burst", func() []byte { return edit(edit(row()[:codes+3], codes+1, 0), codes+2, 0) }, length, false},
			{"a burst beyond", func() []byte { return edit(row(), codes, 0xc0) }, length, false},
			{"no rows", func() []byte { return edit(row(), wire.HeaderLen+1, 0) }, length, false},
			{"16,385 zeros", func() []byte { return codedRow(h, wire.TypeCold, make([]float32, wire.MaxCoded+1)) }, length, false},
			{"16,384 zeros", func() []byte { return codedRow(h, wire.TypeCold, make([]float32, wire.MaxCoded)) },
				wire.Refusal{Code: wire.CodeDimension, Value: testDim}, false},
			{"NaN", func() []byte { return codedRow(h, wire.TypeCold, []float32{0, float32(math.NaN()), 0}) }, notFinite, false},
			{"by number", func() []byte { return codedRow(h, wire.TypeColdAt, good) }, wire.Refusal{Code: wire.CodeRowNumber}, false},
			{"a pull with the flag", func() []byte { b := pullOf(h, 1); b[1] |= byte(wire.FlagCoded); return b }, none, true},
			{"good again", row, none, false},
		} {
			want := f.want
			if config == (codec.Config{}) && !f.always {
				want = wire.Refusal{Code: wire.CodeCoding}
			}
			l.refuse = func(rows wire.Rows) error {
				for i := range rows.Count * rows.Dim {
					if math.IsNaN(float64(math.Float32frombits(rows.Bits(i)))) {
						return wire.Refusal{Code: wire.CodeNotFinite, Index: uint16(i)}
					}
				}
				return nil
			}
			h.Seq++
			if got := refusalOf(t, c.ask(f.make())); got != want {
				t.Errorf("codec %+v, %s: %v, want %v", config, f.name, got, want)
			}
		}
		var sums map[uint64][]int64
		if err := s.Do(t.Context(), func() { sums = l.sums }); err != nil {
			t.Fatal(err)
		}
		want := newLedger()
		want.addBatch([]uint64{42}, []float32{1, 1, 1})
		if config == testCodec {
			want.addBatch([]uint64{42}, good)
			want.addBatch([]uint64{42}, good)
		}
		if diff := cmp.Diff(want.sums, sums); diff != "" {
			t.Errorf("sums (-want +got):\n%s", diff)
		}
	}
}

// A worker with a codec and a server without one, or the other way round: the first is refused,
// with the remedy, and the second has floats.
func TestCodecOfOneSide(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1, tamper: func(cfg *WorkerConfig) { cfg.Codec = testCodec }}
	c := newCluster(t, memFabric(t, o), o)
	ticket, err := c.workers[0].Push(ctx, []uint64{1}, make([]float32, testDim))
	if err != nil {
		t.Fatal(err)
	}
	err = ticket.Wait(ctx)
	var pushed *PushError
	if !errors.Is(err, wire.Refusal{Code: wire.CodeCoding}) || !errors.As(err, &pushed) || pushed.Refused != 1 ||
		!strings.Contains(err.Error(), "codec.bound") {
		t.Errorf("%v", err)
	}
	o = clusterOptions{workers: 1, codec: testCodec, tamper: func(cfg *WorkerConfig) { cfg.Codec = codec.Config{} }}
	c = newCluster(t, memFabric(t, o), o)
	want := pushAll(ctx, t, c.workers, 2, 3, 100)
	if diff := cmp.Diff(want, c.sums()); diff != "" {
		t.Errorf("sums (-want +got):\n%s", diff)
	}
}

func TestCodecConfig(t *testing.T) {
	for _, f := range []struct {
		codec.Config
		dim  int
		want string
	}{
		{codec.Config{Bound: 15}, 1, "15 is not in [1, 14]"},
		{codec.Config{Bound: 10, Scale: -127}, 1, "-127 is not in [-126, 126]"},
		{codec.Config{Bound: 10, Paper: true}, 1, "leave Paper out"},
		{codec.Config{Bound: 10}, 340, "leave the codec out (codec.bound)"},
		{codec.Config{Bound: 10}, 339, ""},
		{codec.Config{}, 340, ""},
	} {
		check := func(who string, err error) {
			t.Helper()
			if f.want == "" && err != nil || f.want != "" && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), f.want)) {
				t.Errorf("%s, %+v, %d floats a row: %v, want %q", who, f.Config, f.dim, err, f.want)
			}
		}
		network := newMemNet()
		s, err := NewServer(ServerConfig{Link: network.open("10.0.0.1:19522"), Job: testJob, Dim: f.dim, Handler: discard{}, Codec: f.Config})
		if check("server", err); err == nil {
			s.Close()
		}
		w, err := NewWorker(t.Context(), WorkerConfig{Link: network.open("10.0.0.2:19522"), Job: testJob, Sender: 1, Dim: f.dim, Codec: f.Config,
			Server: wire.Endpoint{IP: network.addr("10.0.0.1"), Port: 19522}})
		if check("worker", err); err == nil {
			w.Close()
		}
	}
}
