// SPDX-License-Identifier: Apache-2.0

package linktest

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

func addresses(p *pair) {
	for _, l := range []link.Link{p.a, p.b} {
		at, limits := l.Local(), l.Limits()
		if !at.IP.IsValid() || at.IP.IsUnspecified() || at.IP.Zone() != "" || at.Port == 0 {
			p.Errorf("Local is %v: want an address without a zone, and a port", at)
		}
		if limits.MaxPayload < wire.HotLen(1) {
			p.Errorf("a payload of %d bytes does not fit, the largest has %d", wire.HotLen(1), limits.MaxPayload)
		}
		if w := limits.Window; w < 1 || w > wire.DefaultWindow || w&(w-1) != 0 {
			p.Errorf("the window is %d: want a power of two, at most %d", w, wire.DefaultWindow)
		}
		if l.Local() != at || l.Limits() != limits {
			p.Errorf("Local or Limits changed: %v %+v, then %v %+v", at, limits, l.Local(), l.Limits())
		}
	}
	if p.a.Local().AddrPort() == p.b.Local().AddrPort() {
		p.Errorf("both links are at %v", p.a.Local())
	}
}

func paths(p *pair) {
	if to := p.ab.To(); to.AddrPort() != p.b.Local().AddrPort() {
		p.Errorf("a path to %v leads to %v", p.b.Local(), to)
	}
	to := p.b.Local()
	noPort, noAddress := to, to
	noPort.Port, noAddress.IP = 0, netip.Addr{}
	for _, bad := range []wire.Endpoint{{}, noPort, noAddress} {
		if path, err := p.a.Path(p.ctx, bad); !errors.Is(err, link.ErrConfig) {
			p.Errorf("a path to %v: %v, %v; want an ErrConfig", bad, path, err)
		}
	}
	// It does not end the link. Two paths to one destination are equivalent.
	p.exchange(p.a, p.b, p.path(p.a, p.b), p.messages(50))
	p.exchange(p.a, p.b, p.ab, p.messages(50))
}

func sizes(p *pair) {
	for i, from := range []link.Link{p.a, p.b} {
		to, way := p.b, p.ab
		if i == 1 {
			to, way = p.a, p.ba
		}
		p.exchange(from, to, way, p.messages(wire.HeaderLen, wire.HeaderLen+1, 60, 601, from.Limits().MaxPayload-1,
			from.Limits().MaxPayload))
	}
}

// repetitions checks that exactly the marked frames are flagged as retransmissions.
func repetitions(p *pair) {
	marked := map[uint32]bool{}
	for _, retx := range []bool{false, true} {
		all := p.messages(40, 500)
		frames := p.fill(p.a, p.ab, all)
		for i := range frames {
			frames[i].Retx = retx
			marked[all[i].seq] = retx
		}
		p.deliver(p.a, frames, p.inbox(p.b, p.a, all), func(pkts []link.Packet) {
			for _, pkt := range pkts {
				h, _ := wire.ParseHeader(pkt.Payload)
				if flagged := h.Flags&wire.FlagRetx != 0; flagged != marked[h.Seq] {
					p.Fatalf("message %d: RETX flag %v", h.Seq, flagged)
				}
			}
		})
	}
}

// windows sends full windows of large frames.
func windows(p *pair) {
	n := p.a.Limits().Window
	p.exchange(p.a, p.b, p.ab, p.messages(slices.Repeat([]int{p.a.Limits().MaxPayload}, n)...))
	p.exchange(p.a, p.b, p.ab, p.messages(slices.Repeat([]int{100}, n)...))
}

// buffers allocates all transmit buffers, twice.
func buffers(p *pair) {
	size := p.a.Limits().MaxPayload
	count := 0
	for range 2 {
		var all []link.Buf
		for {
			b, ok := p.a.Alloc()
			if !ok {
				break
			}
			if mem := p.a.Payload(b); len(mem) != size {
				p.Fatalf("Payload(%d) has %d bytes, want %d", b, len(mem), size)
			}
			if slices.Contains(all, b) {
				p.Fatalf("Alloc returned %d twice", b)
			}
			all = append(all, b)
			message{uint32(len(all)), size}.put(p.a.Payload(b))
		}
		if count > 0 && len(all) != count || len(all) < p.a.Limits().Window {
			p.Fatalf("%d buffers, then %d; the window is %d", count, len(all), p.a.Limits().Window)
		}
		count = len(all)
		for i, b := range all {
			if err := (message{uint32(i + 1), size}).check(p.a.Payload(b)); err != nil {
				p.Fatalf("buffer %d shares memory with another: %v", b, err)
			}
			p.a.Free(b)
		}
	}
}

// freeWhileSending frees buffers at once and writes into those that Alloc returns, which stay
// allocated until the next batch has been sent.
func freeWhileSending(p *pair) {
	size := p.a.Limits().MaxPayload
	in := p.inbox(p.b, p.a, p.messages(slices.Repeat([]int{size}, 20*batch)...))
	var reused []link.Frame
	for len(in.missing) > 0 {
		p.inTime()
		var next []message
		for _, m := range in.missing {
			if next = append(next, m); len(next) == batch {
				break
			}
		}
		frames := p.fill(p.a, p.ab, next)
		p.send(p.a, frames)
		free(p.a, reused)
		free(p.a, frames)
		reused = reused[:0]
		for range batch {
			b, ok := p.a.Alloc()
			if !ok {
				break
			}
			clear(p.a.Payload(b))
			reused = append(reused, link.Frame{Buf: b})
		}
		in.listenOnce()
	}
	free(p.a, reused)
}

// sameBufferTwice has one buffer more than once in a batch, and in a ring.
func sameBufferTwice(p *pair) {
	all := p.messages(200)
	frames := p.fill(p.a, p.ab, all)
	in := p.inbox(p.b, p.a, all)
	for len(in.missing) > 0 {
		p.inTime()
		p.send(p.a, []link.Frame{frames[0], frames[0], frames[0]})
		p.send(p.a, frames)
		in.listen(nil)
	}
	free(p.a, frames)
	p.exchange(p.a, p.b, p.ab, append(all, p.messages(300)...)) // some copies of the first may still be in flight
}

// shortBatches receives fewer payloads at a time than have arrived.
func shortBatches(p *pair) {
	if n, err := p.b.Receive(nil); n != 0 || err != nil {
		p.Errorf("Receive(nil): %d, %v", n, err)
	}
	if n, err := p.a.Send(nil); n != 0 || err != nil {
		p.Errorf("Send(nil): %d, %v", n, err)
	}
	if err := p.b.Reply(nil); err != nil {
		p.Errorf("Reply(nil): %v", err)
	}
	for _, size := range []int{1, 3} {
		all := p.messages(slices.Repeat([]int{80}, 20)...)
		in := p.inbox(p.b, p.a, all)
		in.pkts = in.pkts[:size]
		p.deliver(p.a, p.fill(p.a, p.ab, all), in, nil)
	}
}

// receivedMemory overwrites the whole memory of each packet of a batch, and checks that the others
// are unchanged.
func receivedMemory(p *pair) {
	size := p.b.Limits().MaxPayload
	all := p.messages(slices.Repeat([]int{90}, 30)...)
	p.deliver(p.a, p.fill(p.a, p.ab, all), p.inbox(p.b, p.a, all), func(pkts []link.Packet) {
		for i := range pkts {
			mem := pkts[i].Payload
			if cap(mem) < size {
				p.Fatalf("a payload's memory has room for %d bytes, want %d", cap(mem), size)
			}
			message{uint32(i), size}.put(mem[:size])
		}
		for i := range pkts {
			if err := (message{uint32(i), size}).check(pkts[i].Payload[:size]); err != nil {
				p.Fatalf("packets of one batch share memory: %v", err)
			}
		}
	})
}

// replies answers every second request, with an answer of a different length.
func replies(p *pair) {
	requests := p.messages(slices.Repeat([]int{100}, 40)...)
	frames := p.fill(p.a, p.ab, requests)
	answers := map[uint32]message{} // by request number
	var all []message
	for i, m := range requests[:len(requests)/2] {
		answer := p.messages([]int{wire.HeaderLen, 99, p.b.Limits().MaxPayload}[i%3])[0]
		all = append(all, answer)
		answers[m.seq+uint32(i)] = answer
	}
	heard, answered := p.inbox(p.b, p.a, requests), p.inbox(p.a, p.b, all)
	for len(heard.missing)+len(answered.missing) > 0 {
		p.inTime()
		p.send(p.a, frames)
		for range 20 {
			pkts := heard.take()
			for i := range pkts {
				h, _ := wire.ParseHeader(pkts[i].Payload)
				if m, ok := answers[h.Seq]; ok {
					m.put(pkts[i].Payload[:m.len])
					pkts[i].Reply = m.len
				}
			}
			if err := p.b.Reply(pkts); err != nil {
				p.Fatalf("Reply: %v", err)
			}
			answered.listenOnce()
		}
	}
	free(p.a, frames)
}

// endurance moves more payloads than a link has buffers: first payloads with answers, then payloads
// without. In the end all buffers are free.
func endurance(p *pair) {
	const rounds = 100
	before := [2]int{countFree(p.a), countFree(p.b)}
	pkts := make([]link.Packet, batch)
	for round := range rounds {
		all := p.messages(slices.Repeat([]int{80}, batch)...)
		frames := p.fill(p.a, p.ab, all)
		missing := map[uint32]bool{}
		for _, m := range all {
			missing[m.seq] = true
		}
		arrive := func(pkts []link.Packet) {
			for _, pkt := range pkts {
				h, _ := wire.ParseHeader(pkt.Payload)
				delete(missing, h.Seq)
			}
		}
		for len(missing) > 0 {
			p.inTime()
			p.send(p.a, frames)
			for quiet := 0; quiet < 3 && len(missing) > 0; quiet++ {
				n := p.receive(p.b, pkts)
				if round >= rounds/2 {
					arrive(pkts[:n])
					continue
				}
				for i := range n {
					pkts[i].Reply = len(pkts[i].Payload)
				}
				if err := p.b.Reply(pkts[:n]); err != nil {
					p.Fatalf("Reply: %v", err)
				}
				arrive(pkts[:p.receive(p.a, pkts)])
			}
		}
		free(p.a, frames)
	}
	for i, l := range []link.Link{p.a, p.b} {
		for n := countFree(l); n < before[i]; n = countFree(l) {
			if p.ctx.Err() != nil {
				p.Fatalf("there were %d transmit buffers, and %d afterwards", before[i], n)
			}
			p.receive(l, pkts) // some may still be in flight
		}
	}
}

func countFree(l link.Link) int {
	var all []link.Buf
	for b, ok := l.Alloc(); ok; b, ok = l.Alloc() {
		all = append(all, b)
	}
	for _, b := range all {
		l.Free(b)
	}
	return len(all)
}
