// SPDX-License-Identifier: Apache-2.0

package linktest_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/link/linktest"
	"github.com/libra-ina/libra/wire"
)

// base is a correct link, of which each broken one below breaks something.
func base(t *testing.T) link.Link {
	t.Helper()
	l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// broken has links that break the contract in one point each, by the test that sees
// it.
var broken = map[string]func(link.Link) link.Link{
	"Addresses":        func(l link.Link) link.Link { return oddWindow{l} },
	"Path":             func(l link.Link) link.Link { return anyPath{l} },
	"Sizes":            func(l link.Link) link.Link { return corrupting{l} },
	"Repetitions":      func(l link.Link) link.Link { return unmarked{l} },
	"Windows":          func(l link.Link) link.Link { return narrow{l} },
	"Buffers":          func(l link.Link) link.Link { return sharedBuffer{l} },
	"FreeWhileSending": func(l link.Link) link.Link { return &late{Link: l} },
	"SameBufferTwice":  func(l link.Link) link.Link { return noRepeats{l} },
	"ShortBatches":     func(l link.Link) link.Link { return eager{l} },
	"ReceivedMemory":   func(l link.Link) link.Link { return tight{l} },
	"Reply":            func(l link.Link) link.Link { return chatty{l} },
	"Endurance":        func(l link.Link) link.Link { return &tiring{Link: l} },
	"WaitForLimit":     func(l link.Link) link.Link { return impatient{l} },
	"WaitForPayload":   func(l link.Link) link.Link { return busy{l} },
	"Wake":             func(l link.Link) link.Link { return impatient{l} },
	"BothWays":         func(l link.Link) link.Link { return wrongSource{l} },
	"Stats":            func(l link.Link) link.Link { return uncounted{l} },
	"Close":            func(l link.Link) link.Link { return immortal{l} },
	"Allocations":      func(l link.Link) link.Link { return &wasteful{Link: l} },
}

const breakVar = "LINKTEST_BREAK"

// TestBrokenLinks runs each test on a link that must fail it, in a separate process.
func TestBrokenLinks(t *testing.T) {
	if name := os.Getenv(breakVar); name != "" {
		linktest.Suite{Open: func(t *testing.T) (a, b link.Link) {
			return broken[name](base(t)), broken[name](base(t))
		}}.Run(t)
		return
	}
	for name := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenLinks$/^"+name+"$", "-test.v")
			cmd.Env = append(os.Environ(), breakVar+"="+name)
			out, err := cmd.CombinedOutput()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(string(out), "--- FAIL: TestBrokenLinks/"+name) {
				t.Errorf("a broken link: %v\n%s", err, out)
			}
		})
	}
}

// TestGoodLink runs the tests on the correct link.
func TestGoodLink(t *testing.T) {
	linktest.Suite{Open: func(t *testing.T) (a, b link.Link) { return base(t), base(t) }}.Run(t)
}

type oddWindow struct{ link.Link }

func (l oddWindow) Limits() link.Limits {
	limits := l.Link.Limits()
	limits.Window--
	return limits
}

// anyPath has paths to all destinations.
type anyPath struct{ link.Link }

func (l anyPath) Path(ctx context.Context, to wire.Endpoint) (link.Path, error) {
	if !to.IP.IsValid() || to.Port == 0 {
		to = l.Local()
	}
	return l.Link.Path(ctx, to)
}

// corrupting spoils the last byte of long payloads.
type corrupting struct{ link.Link }

func (l corrupting) Receive(pkts []link.Packet) (int, error) {
	n, err := l.Link.Receive(pkts)
	for _, p := range pkts[:n] {
		if len(p.Payload) > 1000 {
			p.Payload[len(p.Payload)-1] ^= 1
		}
	}
	return n, err
}

// unmarked forgets the flag of repetitions.
type unmarked struct{ link.Link }

func (l unmarked) Send(frames []link.Frame) (int, error) {
	for i := range frames {
		frames[i].Retx = false
	}
	return l.Link.Send(frames)
}

// narrow ends when it gets more than a batch.
type narrow struct{ link.Link }

func (l narrow) Send(frames []link.Frame) (int, error) {
	if len(frames) > 64 {
		return 0, errors.New("too many frames")
	}
	return l.Link.Send(frames)
}

// sharedBuffer has one memory for all buffers.
type sharedBuffer struct{ link.Link }

func (l sharedBuffer) Payload(link.Buf) []byte { return l.Link.Payload(0) }

// late reads a buffer only when the next batch is sent.
type late struct {
	link.Link
	last []link.Frame
}

func (l *late) Send(frames []link.Frame) (int, error) {
	if _, err := l.Link.Send(l.last); err != nil {
		return 0, err
	}
	l.last = append(l.last[:0], frames...)
	return len(frames), nil
}

// noRepeats ends when a buffer is sent twice.
type noRepeats struct{ link.Link }

func (l noRepeats) Send(frames []link.Frame) (int, error) {
	for i := 1; i < len(frames); i++ {
		if frames[i].Buf == frames[i-1].Buf {
			return 0, errors.New("the buffer is in flight")
		}
	}
	return l.Link.Send(frames)
}

// eager returns more packets than there is room for.
type eager struct{ link.Link }

func (l eager) Receive(pkts []link.Packet) (int, error) {
	n, err := l.Link.Receive(pkts)
	if n == len(pkts) && n > 0 {
		n++
	}
	return n, err
}

// tight has no room for an answer.
type tight struct{ link.Link }

func (l tight) Receive(pkts []link.Packet) (int, error) {
	n, err := l.Link.Receive(pkts)
	for i, p := range pkts[:n] {
		pkts[i].Payload = p.Payload[:len(p.Payload):len(p.Payload)]
	}
	return n, err
}

// chatty answers every packet.
type chatty struct{ link.Link }

func (l chatty) Reply(pkts []link.Packet) error {
	for i, p := range pkts {
		if p.Reply == 0 {
			pkts[i].Reply = len(p.Payload)
		}
	}
	return l.Link.Reply(pkts)
}

// tiring answers a few thousand requests.
type tiring struct {
	link.Link
	answers int
}

func (l *tiring) Reply(pkts []link.Packet) error {
	if l.answers += len(pkts); l.answers > 2048 {
		return errors.New("no buffers are left")
	}
	return l.Link.Reply(pkts)
}

// impatient ends when it has to wait.
type impatient struct{ link.Link }

func (l impatient) Wait(time.Duration) error { return errors.New("nothing to do") }

// busy ignores the time limit and fails if nothing arrives soon.
type busy struct{ link.Link }

func (l busy) Wait(limit time.Duration) error {
	if limit < 0 {
		return os.ErrDeadlineExceeded
	}
	return l.Link.Wait(limit)
}

// wrongSource names itself as the source of every packet.
type wrongSource struct{ link.Link }

func (l wrongSource) Receive(pkts []link.Packet) (int, error) {
	n, err := l.Link.Receive(pkts)
	for i := range pkts[:n] {
		pkts[i].Src = l.Local()
	}
	return n, err
}

type uncounted struct{ link.Link }

func (l uncounted) Stats() link.Stats { return link.Stats{} }

// immortal accepts frames after Close.
type immortal struct{ link.Link }

func (l immortal) Reply(pkts []link.Packet) error {
	if err := l.Link.Reply(pkts); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// wasteful allocates for each batch.
type wasteful struct {
	link.Link
	garbage []byte
}

func (l *wasteful) Send(frames []link.Frame) (int, error) {
	l.garbage = make([]byte, 64)
	return l.Link.Send(frames)
}
