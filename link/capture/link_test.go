// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// loop is a UDP link that sends to itself.
type loop struct {
	link.Link
	path link.Path
	t    *testing.T
}

func openLoop(t *testing.T) *loop {
	t.Helper()
	link, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { link.Close() })
	path, err := link.Path(t.Context(), link.Local())
	if err != nil {
		t.Fatal(err)
	}
	return &loop{link, path, t}
}

// send sends frames of n bytes with ascending sequence numbers from first on.
func (l *loop) send(first, frames, n int) {
	l.t.Helper()
	for i := range frames {
		b, ok := l.Alloc()
		if !ok {
			l.t.Fatal("no buffer")
		}
		wire.Header{Type: wire.TypePull, Seq: uint32(first + i)}.Put(l.Payload(b))
		if sent, err := l.Send([]link.Frame{{Buf: b, Len: n, To: l.path}}); sent != 1 || err != nil {
			l.t.Fatalf("sent %d, %v", sent, err)
		}
		l.Free(b)
	}
}

// sequence returns the sequence numbers of captured frames.
func sequence(t *testing.T, frames []link.TappedFrame) []uint32 {
	t.Helper()
	var all []uint32
	for _, f := range frames {
		p, err := wire.ParseFrame(f.Data, 0)
		if err != nil {
			t.Fatal(err)
		}
		h, err := wire.ParseHeader(p.Payload)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h.Seq)
	}
	return all
}

// TestRecord records into a file until the link is closed.
func TestRecord(t *testing.T) {
	l := openLoop(t)
	path := filepath.Join(t.TempDir(), "new", "folder", "ps.pcapng")
	r, err := Record(path, link.TapOf(l.Link), testSource(l.Local().Port))
	if err != nil {
		t.Fatal(err)
	}
	const frames = 500
	l.send(1, frames, 100)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if result, err := r.Close(); err != nil || result.Frames != frames || result.Dropped != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	seqs := sequence(t, read(t, file).frames)
	if len(seqs) != frames || seqs[0] != 1 || seqs[frames-1] != frames {
		t.Errorf("%d frames, %v", len(seqs), seqs)
	}
}

// TestRecordEarlyEnd ends a recording while the link stays open.
func TestRecordEarlyEnd(t *testing.T) {
	l := openLoop(t)
	r, err := Record(filepath.Join(t.TempDir(), "x"), link.TapOf(l.Link), testSource(1))
	if err != nil {
		t.Fatal(err)
	}
	l.send(1, 10, 100)
	if result, err := r.Close(); err != nil || result.Frames != 10 {
		t.Fatalf("%+v, %v", result, err)
	}
}

func TestRecordErrors(t *testing.T) {
	l := openLoop(t)
	tap := link.TapOf(l.Link)
	if _, err := Record("/dev/null/file", tap, testSource(1)); err == nil {
		t.Error("a recording below a file")
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		r, err := Record("/dev/full", tap, testSource(1))
		if err != nil {
			t.Fatal(err)
		}
		l.send(1, 10, 100)
		if _, err := r.Close(); err == nil {
			t.Error("a recording on a full device is complete")
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Record(filepath.Join(t.TempDir(), "x"), tap, testSource(1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a recording of a closed link: %v", err)
	}
}
