// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

func openTestUDP(t *testing.T) link.Link {
	t.Helper()
	l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestUnsendableFrames lets the kernel refuse every frame: that does not end the link, and the
// error about the silent peer mentions it.
func TestUnsendableFrames(t *testing.T) {
	ctx := deadline(t)
	l := openTestUDP(t)
	w, err := NewWorker(ctx, WorkerConfig{
		Link: l, Dim: 1, Flow: retransmit.Config{Silence: 30 * time.Millisecond},
		// No packet can be sent from the loopback interface's address to another host.
		Server: wire.Endpoint{IP: netip.MustParseAddr("192.0.2.1"), Port: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var peer *PeerError
	if err := w.Pull(ctx, []uint64{1}, make([]float32, 1)); !errors.As(err, &peer) || peer.LinkErr == nil || !strings.Contains(err.Error(), peer.LinkErr.Error()) {
		t.Errorf("error %v, want one that tells why nothing could be sent", err)
	}
	if s, err := w.Stats(ctx); err != nil || s.Link.SendError == 0 || s.Link.Sent != 0 {
		t.Errorf("%+v, %v", s.Link, err)
	}
}

func TestAggregatorServerOverUDP(t *testing.T) {
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := openTestUDP(t)
	a, err := NewAggregatorServer(AggregatorConfig{Link: l, Model: model})
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("udp", l.Local().AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	frame := cold(wire.Header{Seq: 5}, 1, 1)
	if _, err := c.Write(frame); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	n, err := c.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := wire.ParseRefusal(answer[:n]); err != nil || r.Code != wire.CodeType {
		t.Errorf("a COLD frame is answered by %v, %v", r, err)
	}
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}
