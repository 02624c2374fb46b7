// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// TestNumbersInRefusals checks the numbers in refusals.
func TestNumbersInRefusals(t *testing.T) {
	ctx := t.Context()
	network := newMemNet()
	combine, rounds := idleWorker(t), muteRounds(t, retransmit.Config{})
	server, handler := newTestServer(t, network)
	l := network.open("10.0.0.9:19522")
	room := l.Limits().MaxPayload
	pair := make([]float32, 2)
	slots := make([]float32, testSlots)
	admit := func(port string) error { return server.Admit(ctx, 3, netip.MustParseAddrPort(port), 1) }
	if err := admit("10.0.0.2:1000"); err != nil {
		t.Fatal(err)
	}
	again := admit("10.0.0.2:1000")
	_, wideRow := NewServer(ServerConfig{Link: l, Dim: 100_000, Handler: handler})
	_, noRow := NewServer(ServerConfig{Link: l, Dim: 0, Handler: handler})
	_, wideModel := NewWorker(ctx, WorkerConfig{Link: l, Dim: 100_000, Server: wire.Endpoint{IP: network.addr("10.0.0.2"), Port: 1}})
	_, layout := NewWorker(ctx, WorkerConfig{Link: l, Dim: 1, Layout: 99, Server: wire.Endpoint{IP: network.addr("10.0.0.2"), Port: 1}})
	tooMany := fmt.Sprintf("reduce of %%d gradients into %%d sums, the hot set has %d slots", testSlots)
	for want, c := range map[string]struct{ is, err error }{
		"Reduce needs sync, the mode is combine":                                            {ErrMode, combine.Reduce(ctx, nil, nil)},
		fmt.Sprintf(tooMany, 2, testSlots):                                                  {nil, rounds.Reduce(ctx, pair, slots)},
		fmt.Sprintf(tooMany, testSlots, 2):                                                  {nil, rounds.Reduce(ctx, slots, pair)},
		"3 sums for 2 gradients":                                                            {nil, combine.PushSum(ctx, []uint64{1}, pair, make([]float32, 3))},
		fmt.Sprintf("pull of 1 keys of dimension %d into 2 floats", testDim):                {nil, combine.Pull(ctx, []uint64{1}, pair)},
		fmt.Sprintf("a row of 100000 floats does not fit a payload of %d", room):            {ErrConfig, wideRow},
		fmt.Sprintf("a row of 0 floats does not fit a payload of %d", room):                 {ErrConfig, noRow},
		fmt.Sprintf("a row of 100000 gradients does not fit a payload of %d", room):         {ErrConfig, wideModel},
		ErrConfig.Error() + ": packer: ":                                                    {ErrConfig, layout},
		fmt.Sprintf("sender 3 of job %d is admitted already", testJob):                      {ErrConfig, again},
		"sender 3: frames cannot come from 10.0.0.2:0: it is not a host's address and port": {ErrConfig, admit("10.0.0.2:0")},
	} {
		if c.err == nil || c.is != nil && !errors.Is(c.err, c.is) || !strings.Contains(c.err.Error(), want) {
			t.Errorf("%v, want %q", c.err, want)
		}
	}
}

// A refusal for the numbering of a frame without one is an ordinary error: the frame is not pushed
// again.
func TestOnlyNumberedFramesAreSentAgain(t *testing.T) {
	var w Worker
	if w.sendAgain(&operation{}, 0, cold(wire.Header{Job: testJob}, testDim, 1)) || len(w.pushes) > 0 {
		t.Error("a frame without numbers is pushed again")
	}
}
