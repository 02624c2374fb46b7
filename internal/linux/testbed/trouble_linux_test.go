// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// exchange sends a datagram each way, until each has arrived or one is lost: then it reports which
// way.
func exchange(t *testing.T, a, b *net.UDPConn) (there, back bool) {
	t.Helper()
	pass := func(from, to *net.UDPConn) bool {
		_, err := from.WriteToUDPAddrPort([]byte("x"), addrPort(to))
		if err != nil {
			return false
		}
		if err := to.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		_, _, err = to.ReadFromUDPAddrPort(make([]byte, 9))
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		return err == nil
	}
	return pass(a, b), pass(b, a)
}

// awaitExchange waits until datagrams pass both ways: links and neighbours take their time.
func awaitExchange(t *testing.T, a, b *net.UDPConn) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		if there, back := exchange(t, a, b); there && back {
			return
		}
		if time.Now().After(end) {
			t.Fatal("datagrams do not pass")
		}
	}
}

func TestNodesAreTroubled(t *testing.T) {
	bed := newBed(t, Config{})
	a, b := bed.Host(0), bed.Host(1)
	x, y := listenUDP(t, a), listenUDP(t, b)
	awaitExchange(t, x, y)

	restore, err := a.Misdirect(b)
	if err != nil {
		t.Fatal(err)
	}
	if there, back := exchange(t, x, y); there || !back {
		t.Errorf("what a host loses arrives: %v; what the other sends arrives: %v", there, back)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	awaitExchange(t, x, y)

	if err := b.SetCable(false); err != nil {
		t.Fatal(err)
	}
	if there, back := exchange(t, x, y); there || back {
		t.Errorf("a cable that is not there carries: %v, %v", there, back)
	}
	if err := b.SetCable(true); err != nil {
		t.Fatal(err)
	}
	awaitExchange(t, x, y)
	if err := bed.Switch().SetCable(false); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}

	mac := net.HardwareAddr{2, 0, 0, 0, 9, 9}
	if err := errors.Join(b.SetMAC(mac), b.SetMTU(1234)); err != nil {
		t.Fatal(err)
	}
	err = b.Do(func() error {
		d, err := readDevice(b.Interface)
		if d.MAC != mac.String() || d.MTU != 1234 {
			t.Errorf("%+v", d)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// The others know at once: the kernel doubts an address only after some seconds.
	if there, back := exchange(t, x, y); !there || !back {
		t.Errorf("with another address, datagrams pass: %v, %v", there, back)
	}
	if err := b.SetMTU(1); err == nil {
		t.Error("an MTU of 1")
	}
}
