// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

func TestDeadlinesOfUDPConn(t *testing.T) {
	bed, c := newConn(t, 1)
	read := func() error { _, _, err := c.ReadFrom(make([]byte, 10)); return err }
	if err := c.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, read(), os.ErrDeadlineExceeded)
	var timeout net.Error
	_, err := c.WriteTo(nil, &net.UDPAddr{IP: bed.Host(1).IP.AsSlice(), Port: 9})
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("write after the deadline: %v", err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	// A reader that is already waiting notices it.
	result := make(chan error)
	go func() { result <- read() }()
	for !c.sender().in.wake.Sleeping() {
		time.Sleep(time.Millisecond)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, <-result, os.ErrDeadlineExceeded)
	// A neighbour that does not answer.
	if err := c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	nobody := bed.Host(1).IP.Next().Next()
	_, err = c.WriteToUDPAddrPort(nil, netip.AddrPortFrom(nobody, 9))
	wantErr(t, err, os.ErrDeadlineExceeded)
	// Close ends both, and setting deadlines.
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	go func() { result <- read() }()
	go func() { _, err := c.WriteToUDPAddrPort(nil, netip.AddrPortFrom(nobody, 9)); result <- err }()
	time.Sleep(20 * time.Millisecond)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantErr(t, <-result, net.ErrClosed)
	}
	wantErr(t, read(), net.ErrClosed)
	wantErr(t, c.SetDeadline(time.Time{}), net.ErrClosed)
}

// Reading and writing after Close fails with net.ErrClosed, even if a deadline has passed: a loop
// that continues after a deadline would never end.
func TestClosedIsToldBeforeADeadline(t *testing.T) {
	_, c := newConn(t, 1)
	if err := c.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	to := c.local
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.ReadFrom(make([]byte, 10)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read: %v", err)
	}
	if _, err := c.WriteToUDPAddrPort(nil, to); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write: %v", err)
	}
}

// After a deadline calls fail, including those that would find a packet or could send theirs at
// once.
func TestUDPConnAfterADeadline(t *testing.T) {
	bed, c := newConn(t, 1)
	k := kernelConn(t, bed.Switch())
	to := k.LocalAddr().(*net.UDPAddr).AddrPort()
	write := func() error {
		_, err := c.WriteToUDPAddrPort([]byte("known"), netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
		return err
	}
	read := func() error {
		_, _, err := c.ReadFrom(make([]byte, 100))
		return err
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := k.WriteTo([]byte("hello"), c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the packets", func() bool {
		n, ok := c.sender().rx.availableEntries(3)
		return ok && n == 3
	})
	for _, step := range []struct {
		deadline time.Time
		want     error
	}{{time.Time{}, nil}, {time.Unix(1, 0), os.ErrDeadlineExceeded}, {time.Time{}, nil}} {
		if err := c.SetDeadline(step.deadline); err != nil {
			t.Fatal(err)
		}
		if err := read(); !errors.Is(err, step.want) {
			t.Errorf("read with deadline %v: %v", step.deadline, err)
		}
		if err := write(); !errors.Is(err, step.want) {
			t.Errorf("write with deadline %v: %v", step.deadline, err)
		}
	}
}
