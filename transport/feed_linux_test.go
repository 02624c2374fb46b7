// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// readingFeed reads a descriptor in each turn, and signals what it has read and when it sleeps.
type readingFeed struct {
	fd     int
	read   chan byte
	sleeps chan struct{}
}

func (f *readingFeed) Turn() bool {
	var b [1]byte
	n, _ := unix.Read(f.fd, b[:]) // fails if nothing is there
	if n == 1 {
		f.read <- b[0]
	}
	return n == 1
}

func (f *readingFeed) Sleep() bool {
	select {
	case f.sleeps <- struct{}{}:
	default:
	}
	return true
}

func (f *readingFeed) Awake()    {}
func (f *readingFeed) End(error) {}

// blind is a link that cannot watch a descriptor.
type blind struct{ link.Link }

// A worker without other work sleeps until its feed's descriptor is readable; where its link cannot
// watch that, it looks now and then.
func TestFeedsDescriptorWakesTheWorker(t *testing.T) {
	t.Run("watched", func(t *testing.T) { wakesForItsFeed(t, openTestUDP(t)) })
	t.Run("not watched", func(t *testing.T) { wakesForItsFeed(t, blind{openTestUDP(t)}) })
}

func wakesForItsFeed(t *testing.T, l link.Link) {
	ctx := deadline(t)
	w, err := NewWorker(ctx, WorkerConfig{
		Link: l, Dim: 1, Server: wire.Endpoint{IP: netip.MustParseAddr("127.0.0.1"), Port: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	f := &readingFeed{fd: pipe[0], read: make(chan byte, 1), sleeps: make(chan struct{}, 1)}
	if err := w.Attach(ctx, f, f.fd); err != nil {
		t.Fatal(err)
	}
	for n := range byte(3) {
		select {
		case <-f.sleeps:
		case <-ctx.Done():
			t.Fatal("the worker does not sleep")
		}
		if _, err := unix.Write(pipe[1], []byte{n}); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-f.read:
			if got != n {
				t.Errorf("the feed reads %d, want %d", got, n)
			}
		case <-ctx.Done():
			t.Fatal("the worker sleeps, although its feed's descriptor is readable")
		}
	}
	if err := w.Attach(ctx, nil, f.fd); err != nil { // ends the feed, whatever the descriptor
		t.Fatal(err)
	}
}
