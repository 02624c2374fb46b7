// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// A frame that requests an answer, or is repeated, requests one that covers others unless it needs
// its own. Its other flags and the rest do not change.
func TestQuietFramesAskWhenRepeated(t *testing.T) {
	for _, c := range []struct {
		flags, asked wire.Flags
		cover        bool
	}{
		{0, 0, false},
		{wire.FlagQuiet, wire.FlagCover, true},
		{wire.FlagCover, wire.FlagCover, true},
		{wire.FlagDense | wire.FlagQuiet, wire.FlagDense | wire.FlagCover, true},
		{wire.FlagDense | wire.FlagSum, wire.FlagDense | wire.FlagSum, false},
		{wire.FlagRetx | wire.FlagCover, wire.FlagRetx | wire.FlagCover, true},
	} {
		frame := hot(header(wire.TypeHot, c.flags), []pair{{0, 1, 1}})
		for what, change := range map[string]struct {
			do   func(b []byte)
			want wire.Flags
		}{
			"asked about": {func(b []byte) {
				if cover := wire.Ask(b); cover != c.cover {
					t.Errorf("flags %v: Ask returns %v", c.flags, cover)
				}
			}, c.asked},
			"repeated": {wire.MarkRetx, c.asked | wire.FlagRetx},
		} {
			got := bytes.Clone(frame)
			for range 2 {
				change.do(got)
			}
			if want := hot(header(wire.TypeHot, change.want), []pair{{0, 1, 1}}); !bytes.Equal(got, want) {
				t.Errorf("a frame with flags %v that is %s has % x, want % x", c.flags, what, got[:wire.HeaderLen], want[:wire.HeaderLen])
			}
		}
	}
}

// Only an answer with the flag covers frames, whatever its body is.
func TestOnlyCoversCover(t *testing.T) {
	const cover = 0x8123_4567_89ab_cdef
	b := wire.PutCover(make([]byte, 64), header(wire.TypeHot, wire.FlagQuiet|wire.FlagDense), cover)
	h, err := wire.ParseHeader(b)
	if err != nil || len(b) != wire.CoverLen || h.Type != wire.TypeAck || h.Flags != wire.FlagCover || wire.Cover(b, h) != cover {
		t.Errorf("%d bytes, %+v, %v, cover %x", len(b), h, err, wire.Cover(b, h))
	}
	for _, flags := range []wire.Flags{0, wire.FlagSum, wire.FlagScale, wire.FlagQuiet} {
		if h.Flags = flags; wire.Cover(b, h) != 0 {
			t.Errorf("an answer with flags %v covers %x", flags, wire.Cover(b, h))
		}
	}
}
