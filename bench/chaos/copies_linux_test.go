// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"context"
	"math/bits"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// The receiver of a frame also gets a late copy of it and one with a flipped bit. Other hosts get
// nothing.
func TestNetworkCopiesFrames(t *testing.T) {
	b := bedtest.New(t, testbed.Config{StaticARP: true})
	from, to := b.Host(0), b.Host(1)
	c, err := newCopier(b, &Life{Seed: 3, Late: 1, Corrupt: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }()
	const etherType = 0x88b5 // for experiments: no host answers
	frame := append(append([]byte{}, to.MAC...), from.MAC...)
	frame = append(frame, etherType>>8, etherType&0xff)
	frame = append(frame, bytes.Repeat([]byte{7}, 100)...)
	receive := packetSocket(t, to)
	send := packetSocket(t, from)
	if err := unix.Sendto(send, frame, 0, &unix.SockaddrLinklayer{Ifindex: from.Index, Halen: 6}); err != nil {
		t.Fatal(err)
	}
	same, damaged := 0, 0
	got := make([]byte, 2000)
	for end := time.Now().Add(time.Minute); same < 2 || damaged < 1; {
		n, _, err := unix.Recvfrom(receive, got, 0)
		if err != nil {
			if time.Now().After(end) {
				t.Fatalf("%d frames, %d damaged", same, damaged)
			}
			continue
		}
		if n != len(frame) || !bytes.Equal(got[:6], frame[:6]) {
			continue
		}
		flipped := 0
		for i := range frame {
			flipped += bits.OnesCount8(got[i] ^ frame[i])
		}
		switch flipped {
		case 0:
			same++
		case 1:
			damaged++
		default:
			t.Fatalf("%d bits are flipped: % x", flipped, got[:n])
		}
	}
	cancel()
	if err := <-ended; err != nil || c.late != 1 || c.corrupt != 1 {
		t.Errorf("%v, %d late copies, %d damaged ones", err, c.late, c.corrupt)
	}
}

// packetSocket opens a socket for all frames of a host, whose reception ends after 100 ms.
func packetSocket(t *testing.T, n *testbed.Node) (fd int) {
	t.Helper()
	err := n.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
