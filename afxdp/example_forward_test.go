// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp_test

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// Forward all packets between two interfaces, without copying them: a frame received on one socket
// is sent on the other one of the same UMEM. A socket that fails does not end the loop.
func ExamplePoller_forward() {
	bed, err := testbed.New(context.Background(), testbed.Config{Hosts: 2, MTU: 1500, Unbridged: true})
	if err != nil {
		fatal(err)
	}
	defer bed.Close()
	umem, pool := memory(afxdp.UMEMConfig{})
	var (
		progs [2]*afxdp.Attachment
		socks [2]*afxdp.Socket
	)
	err = bed.Switch().Do(func() (err error) {
		for i := range socks {
			port := bed.Host(i).PortName // "port0", "port1"
			if progs[i], err = afxdp.Attach(afxdp.AttachConfig{Interface: port, Match: afxdp.MatchAll()}); err != nil {
				return err
			}
			if socks[i], err = afxdp.Open(pool, afxdp.Config{Interface: port, XSKMap: progs[i].XSKMap(), RxFrames: 1024}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		fatal(err)
	}
	go func() {
		fmt.Println(throughTheSwitch(bed, "hello"))
		socks[0].Wake()
	}()

	poller := afxdp.NewPoller(socks[:]...)
	descs, frames := make([]afxdp.Desc, 64), make([]afxdp.Frame, 64)
	forward := func(from, to *afxdp.Socket) error {
		n, err := from.Receive(descs)
		sent, sendErr := to.Send(descs[:n])
		dropErr := from.Release(descs[sent:n]) // without room
		if err := errors.Join(err, sendErr, dropErr, to.Kick()); err != nil {
			return err
		}
		// Frames that are sent wait again for packets, on the socket that received them.
		if n, err = to.Completed(frames); err != nil {
			return err
		}
		filled, err := from.Fill(frames[:n])
		return errors.Join(err, pool.Free(frames[filled:n]...))
	}
	for woken := false; !woken; {
		ready, err := poller.Poll(afxdp.EventRx, -1)
		if err != nil {
			fatal(err)
		}
		for _, r := range ready {
			to := socks[0]
			if r.Socket == to {
				to = socks[1]
			}
			if err := errors.Join(r.Err, forward(r.Socket, to)); err != nil {
				fmt.Println(err)
			}
			woken = woken || r.Events&afxdp.EventWake != 0
		}
	}
	if err := errors.Join(progs[0].Close(), progs[1].Close(), socks[0].Close(), socks[1].Close(), umem.Close()); err != nil {
		fatal(err)
	}
	// Output: answer to hello
}

// throughTheSwitch sends a request from the kernel of host0 to that of host1.
func throughTheSwitch(bed *testbed.Bed, question string) string {
	var server *net.UDPConn
	var client net.Conn
	err := errors.Join(
		bed.Host(1).Do(func() (err error) {
			server, err = net.ListenUDP("udp4", &net.UDPAddr{IP: bed.Host(1).IP.AsSlice()})
			return err
		}),
		bed.Host(0).Do(func() (err error) {
			client, err = net.Dial("udp4", server.LocalAddr().String())
			return err
		}),
	)
	if err != nil {
		fatal(err)
	}
	defer server.Close()
	defer client.Close()
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := server.ReadFromUDP(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDP(append([]byte("answer to "), buf[:n]...), from)
		}
	}()
	answer, err := exchange(client, []byte(question), func([]byte) bool { return true })
	if err != nil {
		fatal(err)
	}
	return string(answer)
}
