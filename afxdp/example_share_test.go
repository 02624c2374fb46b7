// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// Two services on one queue, each with its own socket and goroutine.
func ExampleConfig_shareQueue() {
	bed, err := testbed.New(context.Background(), testbed.Config{Hosts: 1, MTU: 1500})
	if err != nil {
		fatal(err)
	}
	defer bed.Close()
	umem, err := afxdp.NewUMEM(afxdp.UMEMConfig{})
	if err != nil {
		fatal(err)
	}
	reverse := func(b []byte) []byte { slices.Reverse(b); return b }
	// serve answers with handle's result for the payload, until the socket is closed.
	serve := func(s *afxdp.Socket, handle func([]byte) []byte) {
		err := afxdp.Serve(func(s *afxdp.Socket, packets []afxdp.Desc) error {
			for _, d := range packets {
				if u, ok := afxdp.ParseUDP(umem.Packet(d)); ok {
					n, err := u.Reply(handle(u.Payload()))
					if err == nil {
						d.Len = uint32(n)
						_, err = s.Send([]afxdp.Desc{d})
					}
					if err != nil {
						return err
					}
				}
			}
			return nil
		})(s)
		if !errors.Is(err, net.ErrClosed) {
			fatal(err)
		}
	}

	var (
		prog      *afxdp.Attachment
		goroutine sync.WaitGroup
		socks     [2]*afxdp.Socket
	)
	err = bed.Host(0).Do(func() (err error) {
		prog, err = afxdp.Attach(afxdp.AttachConfig{
			Interface: "host0", Match: afxdp.MatchUDP(7), Others: []afxdp.Match{afxdp.MatchUDP(8)},
		})
		if err != nil {
			return err
		}
		for i, handle := range []func([]byte) []byte{bytes.ToUpper, reverse} {
			pool, err := umem.NewPool(2048)
			if err != nil {
				return err
			}
			socks[i], err = afxdp.Open(pool, afxdp.Config{Interface: "host0", ShareQueue: true, XSKMap: prog.OtherXSKMap(i - 1)})
			if err != nil {
				return err
			}
			goroutine.Go(func() { serve(socks[i], handle) })
		}
		return nil
	})
	if err != nil {
		fatal(err)
	}
	fmt.Println(ask(bed, 7, "first"))
	fmt.Println(ask(bed, 8, "second"))
	if err := errors.Join(prog.Close(), socks[0].Close(), socks[1].Close(), umem.Close()); err != nil {
		fatal(err)
	}
	goroutine.Wait()
	// Output:
	// 40 answers: FIRST
	// 40 answers: dnoces
}
