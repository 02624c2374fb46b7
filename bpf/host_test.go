// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/sys"
)

// host is a machine behind a port of the aggregator: AF_XDP sockets on all
// queues of its interface, which get every frame that arrives. It belongs to one
// goroutine.
type host struct {
	sockets []*afxdp.Socket
	next    int // the socket that sends next
}

// openHost must be called in the interface's namespace.
func openHost(t *testing.T, iface string, queues int) *host {
	t.Helper()
	prog, err := afxdp.Attach(afxdp.AttachConfig{Interface: iface, Mode: afxdp.AttachNative, Match: afxdp.MatchAll(), Queues: queues})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{}
	for q := range queues {
		umem, err := afxdp.NewUMEM(afxdp.UMEMConfig{Frames: 256, FrameSize: 4096})
		if err != nil {
			t.Fatal(err)
		}
		pool, err := umem.NewPool(0)
		if err != nil {
			t.Fatal(err)
		}
		s, err := afxdp.Open(pool, afxdp.Config{Interface: iface, Queue: q, XSKMap: prog.XSKMap()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(s.Close(), umem.Close()); err != nil {
				t.Error(err)
			}
		})
		h.sockets = append(h.sockets, s)
	}
	// Last in, first out: the program goes before its sockets.
	t.Cleanup(func() {
		if err := prog.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// onAllCPUs runs work for 0 to n-1 at once, on threads that are spread over all
// CPUs and stay there.
func onAllCPUs(t *testing.T, n int, work func(i int) error) {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			// Never unpinned, so that the thread ends here.
			if _, err := sys.PinThread(i % runtime.NumCPU()); err != nil {
				t.Errorf("pin to a CPU: %v", err)
				return
			}
			if err := work(i); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// send sends a frame; those of one host take turns on its queues.
func (h *host) send(frame []byte) error {
	s := h.sockets[h.next%len(h.sockets)]
	h.next++
	done := make([]afxdp.Frame, 64)
	n, err := s.Completed(done)
	if err != nil {
		return err
	}
	if err := s.Pool().Free(done[:n]...); err != nil {
		return err
	}
	f, ok := s.Pool().Alloc()
	if !ok {
		return afxdp.ErrNoFrames
	}
	d := afxdp.Desc{Frame: f, Off: uint16(s.UMEM().RxOffset()), Len: uint32(len(frame))}
	copy(s.UMEM().Packet(d), frame)
	if n, err := s.Send([]afxdp.Desc{d}); n != 1 || err != nil {
		return fmt.Errorf("%d frames sent: %w", n, err)
	}
	return s.Kick()
}

// receive returns a copy of the next frame that has arrived, or nil.
func (h *host) receive() ([]byte, error) {
	for _, s := range h.sockets {
		var d [1]afxdp.Desc
		n, err := s.Receive(d[:])
		if err != nil {
			return nil, err
		}
		if n == 1 {
			frame := append([]byte(nil), s.UMEM().Packet(d[0])...)
			return frame, s.Release(d[:])
		}
	}
	return nil, nil
}

// wait is receive, but waits for a frame until a deadline.
func (h *host) wait(deadline time.Time) ([]byte, error) {
	poller := afxdp.NewPoller(h.sockets...)
	for {
		frame, err := h.receive()
		if frame != nil || err != nil {
			return frame, err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, nil
		}
		if _, err := poller.Poll(afxdp.EventRx, left); err != nil {
			return nil, err
		}
	}
}
