// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"strings"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// joiner counts its jobs.
type joiner struct {
	Link
	jobs []uint16
}

func (j *joiner) Join(job uint16) error {
	j.jobs = append(j.jobs, job)
	return errors.New("too many jobs")
}

// TestJoinThroughWrappers finds the link that must join below the links that wrap it.
func TestJoinThroughWrappers(t *testing.T) {
	below := &joiner{Link: openTestUDP(t, "127.0.0.1:0")}
	var wrapped Link = below
	for range 2 {
		var err error
		if wrapped, err = WithFaults(wrapped, Faults{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := Join(wrapped, 7); err == nil || err.Error() != "too many jobs" || len(below.jobs) != 1 || below.jobs[0] != 7 {
		t.Errorf("Join: %v; joined %v", err, below.jobs)
	}
	if err := Join(below.Link, 7); err != nil {
		t.Errorf("Join on a link that needs none: %v", err)
	}
	if err := Join(struct{ Link }{below}, 7); err != nil || len(below.jobs) != 1 {
		t.Errorf("Join through a wrapper without Unwrap: %v", err)
	}
	if tap := TapOf(wrapped); tap != nil {
		t.Error("there is a tap behind a wrapper without Unwrap")
	}
}

// TestFaultsConfig checks that errors name the field out of range.
func TestFaultsConfig(t *testing.T) {
	l := openTestUDP(t, "127.0.0.1:0")
	for _, bad := range []Faults{{Drop: 1}, {Duplicate: -0.1}, {Reorder: 2}, {Late: 1}, {Delay: -1}, {LateDelay: -1}} {
		if f, err := WithFaults(l, bad); !errors.Is(err, ErrConfig) || !strings.HasPrefix(err.Error(), ErrConfig.Error()) {
			t.Errorf("%+v: %v, %v; want an ErrConfig", bad, f, err)
		}
	}
}

// TestFaultsWithoutBuffers has no buffer for copies: they are lost, and counted.
func TestFaultsWithoutBuffers(t *testing.T) {
	below := openTestUDP(t, "127.0.0.1:0")
	l, err := WithFaults(below, Faults{Duplicate: 0.999999, Delay: 1})
	if err != nil {
		t.Fatal(err)
	}
	path, err := l.Path(t.Context(), l.Local())
	if err != nil {
		t.Fatal(err)
	}
	var bufs []Buf
	for b, ok := l.Alloc(); ok; b, ok = l.Alloc() {
		bufs = append(bufs, b)
	}
	const frames = 20
	send := func() {
		t.Helper()
		for range frames {
			if n, err := l.Send([]Frame{{Buf: bufs[0], Len: wire.HeaderLen, To: path}}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	send()
	if s := l.Stats(); s.Dropped != frames-1 && s.Dropped != frames || s.Duplicated != frames || s.Sent != frames {
		t.Errorf("without a buffer: %+v", s)
	}
	before := l.Stats().Dropped
	l.Free(bufs[1])
	send()
	if s := l.Stats(); s.Dropped != before || s.Sent < 3*frames-2 {
		t.Errorf("with a buffer: %+v", s)
	}
}
