// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/libra-ina/libra/afxdp"
)

// A program that uses a net.PacketConn gets one that bypasses the kernel's stack.
func ExampleListenUDP() {
	bed := twoQueues()
	defer bed.Close()
	var conn net.PacketConn
	err := bed.Host(0).Do(func() (err error) {
		conn, err = afxdp.ListenUDP("host0", netip.AddrPortFrom(bed.Host(0).IP, 7))
		return err
	})
	if err != nil {
		fatal(err)
	}
	go func() {
		fmt.Println(ask(bed, 7, "hello"))
		conn.Close()
	}()
	buf := make([]byte, 2000)
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			fatal(err)
		}
		if _, err := conn.WriteTo(buf[:n], from); err != nil && !errors.Is(err, net.ErrClosed) {
			fatal(err)
		}
	}
	// Output: 40 answers: hello
}
