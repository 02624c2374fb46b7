// SPDX-License-Identifier: Apache-2.0

package linktest

import (
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
)

func waitForLimit(p *pair) {
	for _, limit := range []time.Duration{0, time.Microsecond, 5 * time.Millisecond} {
		for range 5 {
			if err := p.a.Wait(limit); err != nil {
				p.Fatalf("Wait(%v): %v", limit, err)
			}
		}
	}
	p.inTime()
}

// waitForPayload waits without a limit until something arrives.
func waitForPayload(p *pair) {
	for range 20 {
		all := p.messages(70)
		frames := p.fill(p.a, p.ab, all)
		in := p.inbox(p.b, p.a, all)
		done := make(chan struct{})
		var sender sync.WaitGroup
		sender.Go(func() {
			for {
				if n, err := p.a.Send(frames); n != 1 || err != nil {
					p.Errorf("Send: %d, %v", n, err)
				}
				select {
				case <-done:
					return
				case <-p.ctx.Done():
					p.b.Wake()
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
		for len(in.missing) > 0 && p.ctx.Err() == nil {
			if err := p.b.Wait(-1); err != nil {
				p.Errorf("Wait: %v", err)
				break
			}
			in.take()
		}
		close(done)
		sender.Wait()
		free(p.a, frames)
		p.inTime()
	}
}

// wakes wakes a link before, during and after its sleep.
func wakes(p *pair) {
	wait := func() {
		p.Helper()
		start := time.Now()
		if err := p.a.Wait(patience / 4); err != nil {
			p.Fatalf("Wait: %v", err)
		}
		if time.Since(start) > patience/8 {
			p.Fatal("Wait went on after Wake")
		}
	}
	p.a.Wake()
	wait()
	var wakers sync.WaitGroup
	for i := range 200 {
		wakers.Go(func() {
			time.Sleep(time.Duration(i%3) * 100 * time.Microsecond)
			p.a.Wake()
		})
		wait()
		wakers.Wait()
	}
	p.exchange(p.b, p.a, p.ba, p.messages(40))
}

// bothWays makes both links send to each other at the same time.
func bothWays(p *pair) {
	lengths := slices.Repeat([]int{300}, 200)
	fromA, fromB := p.messages(lengths...), p.messages(lengths...)
	atA, atB := p.inbox(p.a, p.b, fromB), p.inbox(p.b, p.a, fromA)
	var complete atomic.Int32 // links that have received everything
	run := func(l link.Link, frames []link.Frame, in *inbox) {
		defer free(l, frames)
		for got := false; complete.Load() < 2 && p.ctx.Err() == nil && !p.Failed(); {
			for part := range slices.Chunk(frames, batch/2) {
				p.send(l, part)
				in.listenOnce()
			}
			if !got && len(in.missing) == 0 {
				got = true
				complete.Add(1)
			}
		}
	}
	framesA, framesB := p.fill(p.a, p.ab, fromA), p.fill(p.b, p.ba, fromB)
	var other sync.WaitGroup
	defer other.Wait()
	other.Go(func() { run(p.b, framesB, atB) })
	run(p.a, framesA, atA)
	other.Wait()
	p.inTime()
}

func stats(p *pair) {
	before := [2]link.Stats{p.a.Stats(), p.b.Stats()}
	const n = 10
	p.exchange(p.a, p.b, p.ab, p.messages(slices.Repeat([]int{100}, n)...))
	a, b := p.a.Stats(), p.b.Stats()
	if a.Sent < before[0].Sent+n || b.Received < before[1].Received+n {
		p.Errorf("after %d messages: %+v at the sender, %+v at the receiver", n, a, b)
	}
	if err := p.a.Close(); err != nil {
		p.Errorf("Close: %v", err)
	}
	if after := p.a.Stats(); after.Sent < a.Sent {
		p.Errorf("%d frames sent, and %d after Close", a.Sent, after.Sent)
	}
}

func closes(p *pair) {
	p.exchange(p.a, p.b, p.ab, p.messages(100))
	frames := p.fill(p.a, p.ab, p.messages(100))
	for i := range 2 {
		if err := p.a.Close(); err != nil {
			p.Errorf("Close number %d: %v", i+1, err)
		}
	}
	_, send := p.a.Send(frames)
	_, receive := p.a.Receive(make([]link.Packet, 1))
	for name, err := range map[string]error{
		"Send": send, "Receive": receive, "Reply": p.a.Reply(nil), "Wait": p.a.Wait(-1),
	} {
		if !errors.Is(err, net.ErrClosed) {
			p.Errorf("%s after Close: %v, want net.ErrClosed", name, err)
		}
	}
	p.a.Wake()
}

// allocations counts the allocations of a round trip of a batch. The counter is the process's, in
// which a link also follows changes of the network's interfaces and neighbours: what the round
// trips themselves allocate is in each of several counts.
func allocations(p *pair) {
	frames := p.fill(p.a, p.ab, p.messages(slices.Repeat([]int{500}, batch)...))
	pkts := make([]link.Packet, batch)
	receive := func(l link.Link) (n int) {
		for range 1000 {
			got, err := l.Receive(pkts)
			if err != nil {
				p.Fatalf("Receive: %v", err)
			}
			if got > 0 {
				return got
			}
			if err := l.Wait(time.Millisecond); err != nil {
				p.Fatalf("Wait: %v", err)
			}
		}
		p.Fatalf("nothing came of %d frames", len(frames))
		return 0
	}
	trip := func() {
		p.send(p.a, frames)
		n := receive(p.b)
		for i := range n {
			pkts[i].Reply = len(pkts[i].Payload)
		}
		if err := p.b.Reply(pkts[:n]); err != nil {
			p.Fatalf("Reply: %v", err)
		}
		receive(p.a)
	}
	n := testing.AllocsPerRun(100, trip)
	for again := 0; n > 0 && again < 4; again++ {
		n = testing.AllocsPerRun(100, trip)
	}
	if n > 0 {
		p.Errorf("a round trip of %d frames allocates %.0f times", len(frames), n)
	}
	free(p.a, frames)
}
