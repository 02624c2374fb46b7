// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestPacketRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := packet{
			flow:   rapid.Uint16().Draw(t, "flow"),
			calm:   rapid.Bool().Draw(t, "calm"),
			number: rapid.Uint64().Draw(t, "number"),
			sent:   rapid.Int64().Draw(t, "sent"),
		}
		b := make([]byte, size(want.number))
		want.writeFrame(b)
		want.arrived = rapid.Int64().Draw(t, "arrived")
		binary.BigEndian.PutUint64(b[arrivedAt:], uint64(want.arrived))
		got, err := read(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(packet{})); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// Any changed byte that the checksum covers is found, and so is a frame of
// another length.
func TestCorruptPacketIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := packet{number: rapid.Uint64().Draw(t, "number")}
		b := make([]byte, size(p.number))
		p.writeFrame(b)
		i := rapid.IntRange(coveredAt, len(b)-1).Draw(t, "position")
		b[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "change"))
		if _, err := read(b); err == nil {
			t.Fatalf("byte %d was changed without an error", i)
		}
		b = make([]byte, size(p.number))
		p.writeFrame(b)
		if _, err := read(b[:rapid.IntRange(0, len(b)-1).Draw(t, "length")]); err == nil {
			t.Fatal("a packet was cut without an error")
		}
	})
}

func TestForeignFrame(t *testing.T) {
	b := make([]byte, 64)
	(&packet{}).writeFrame(b)
	b[12] = 0x08
	if _, err := read(b); !errors.Is(err, errForeign) {
		t.Errorf("got %v", err)
	}
}

// The window against a model that remembers everything.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 8
		w := sendWindow{size: size}
		type fate struct {
			sent              int64
			answered, givenUp bool
		}
		var model []fate
		clock := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				if w.freeNumbers() == 0 {
					t.Skip("full")
				}
				w.addPacket(clock)
				model = append(model, fate{sent: clock})
				clock++
			},
			"expire": func(t *rapid.T) {
				before := rapid.Int64Range(max(0, clock-2*size), clock).Draw(t, "before")
				w.expireBefore(before)
				for i := range model {
					if f := &model[i]; !f.answered && f.sent < before {
						f.givenUp = true
					}
				}
			},
			"answer": func(t *rapid.T) {
				number := rapid.Uint64Range(0, uint64(len(model))+2).Draw(t, "number")
				err := w.answerPacket(number)
				switch {
				case number >= uint64(len(model)):
					if !errors.Is(err, errNeverSent) {
						t.Fatalf("packet %d was never sent: %v", number, err)
					}
				case model[number].answered:
					if !errors.Is(err, errTwice) {
						t.Fatalf("packet %d was answered before: %v", number, err)
					}
				case err != nil:
					t.Fatal(err)
				default:
					model[number].answered = true
				}
			},
			"": func(t *rapid.T) {
				waiting, base := 0, len(model)
				for i, f := range model {
					if !f.answered && !f.givenUp {
						waiting++
						base = min(base, i)
					}
				}
				if got := w.freeNumbers(); got != size-(len(model)-base) {
					t.Fatalf("room for %d, %d of %d are waited for since %d", got, waiting, len(model), base)
				}
				if sent, ok := w.oldestSent(); ok != (waiting > 0) || (ok && sent != model[base].sent) {
					t.Fatalf("oldest is of %d (%v)", sent, ok)
				}
			},
		})
	})
}

func TestWindowForgets(t *testing.T) {
	w := sendWindow{size: 1}
	for range remembered + 1 {
		w.addPacket(0)
		w.expireBefore(1)
	}
	if err := w.answerPacket(0); !errors.Is(err, errForgotten) {
		t.Errorf("got %v", err)
	}
	if err := w.answerPacket(1); err != nil {
		t.Error(err)
	}
}
