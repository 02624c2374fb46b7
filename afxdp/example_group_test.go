// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/afxdp"
)

// These programs serve all queues of "host0", which has two here, in a separate network. In your
// own program leave that out, name your interface, and let a signal end ctx (signal.NotifyContext).

// Count the packets that arrive on all queues of an interface. Packets that do not match, including
// ARP and SSH, go to the kernel.
func ExampleOpenAll() {
	bed := twoQueues()
	defer bed.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := bed.Host(0).Do(func() error {
		group, err := afxdp.OpenAll("host0", afxdp.GroupConfig{Match: afxdp.MatchUDP(9000, 9001)})
		if err != nil {
			return err
		}
		defer group.Close()
		go send(bed, 9000, "one")

		var packets, size atomic.Int64
		count := func(_ *afxdp.Socket, batch []afxdp.Desc) error {
			for _, d := range batch {
				size.Add(int64(d.Len))
			}
			if packets.Add(int64(len(batch))) == 40 {
				cancel()
			}
			return nil
		}
		err = group.Run(ctx, afxdp.Serve(count))
		fmt.Println(packets.Load(), "packets,", size.Load(), "bytes")
		return err
	})
	if err != nil {
		fatal(err)
	}
	// Output: 40 packets, 1800 bytes
}

// Echo UDP packets to port 7 (RFC 862), on all queues, without a copy.
func ExampleServe() {
	bed := twoQueues()
	defer bed.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := bed.Host(0).Do(func() error {
		group, err := afxdp.OpenAll("host0", afxdp.GroupConfig{Match: afxdp.MatchUDP(7)})
		if err != nil {
			return err
		}
		defer group.Close()
		go func() {
			defer cancel()
			fmt.Println(ask(bed, 7, "hello"))
		}()

		return group.Run(ctx, afxdp.Serve(func(s *afxdp.Socket, packets []afxdp.Desc) error {
			answers := packets[:0]
			for _, d := range packets {
				if u, ok := afxdp.ParseUDP(s.UMEM().Packet(d)); ok {
					if n, err := u.Reply(u.Payload()); err == nil {
						d.Len = uint32(n)
						answers = append(answers, d)
					}
				}
			}
			_, err := s.Send(answers)
			return err
		}))
	})
	if err != nil {
		fatal(err)
	}
	// Output: 40 answers: hello
}

// Answer requests over UDP, like a name server, on all queues.
func ExampleUDP_Reply() {
	bed := twoQueues()
	defer bed.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := bed.Host(0).Do(func() error {
		group, err := afxdp.OpenAll("host0", afxdp.GroupConfig{Match: afxdp.MatchUDP(5353)})
		if err != nil {
			return err
		}
		defer group.Close()
		go func() {
			defer cancel()
			fmt.Println(ask(bed, 5353, "b.example"))
		}()

		addresses := map[string][]byte{"a.example": []byte("192.0.2.1"), "b.example": []byte("192.0.2.2")}
		return group.Run(ctx, afxdp.Serve(func(s *afxdp.Socket, packets []afxdp.Desc) error {
			answers := packets[:0]
			for _, d := range packets {
				u, ok := afxdp.ParseUDP(s.UMEM().Packet(d))
				if !ok {
					continue // dropped
				}
				answer := addresses[string(u.Payload())]
				if n, err := u.Reply(answer); err == nil {
					d.Len = uint32(n)
					answers = append(answers, d)
				}
			}
			_, err := s.Send(answers)
			return err
		}))
	})
	if err != nil {
		fatal(err)
	}
	// Output: 40 answers: 192.0.2.2
}

// Send at a rate, from each of two queues.
func ExamplePace() {
	bed := twoQueues()
	defer bed.Close()
	err := bed.Host(0).Do(func() error {
		// Sockets that only send take no packets from the kernel.
		group, err := afxdp.OpenAll("host0", afxdp.GroupConfig{Socket: afxdp.Config{RxFrames: -1}})
		if err != nil {
			return err
		}
		defer group.Close()

		left := [2]int{50, 50} // of each queue; outside the loop, because Run calls it again after its link was down
		err = group.Run(context.Background(), afxdp.Pace(1000, func(s *afxdp.Socket, packets []afxdp.Desc) (int, error) {
			left := &left[s.Info().Queue]
			n := min(*left, len(packets))
			for i := range packets[:n] {
				b := s.UMEM().Packet(packets[i])
				copy(b, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5paced")
				packets[i].Len = 60
			}
			if *left -= n; *left == 0 {
				return n, io.EOF
			}
			return n, nil
		}))
		stats, statsErr := group.Snapshot()
		fmt.Println("sent", stats.TxCompleted)
		return errors.Join(err, statsErr)
	})
	if err != nil {
		fatal(err)
	}
	// Output: sent 100
}
