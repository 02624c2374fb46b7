// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/libra-ina/libra/link"
)

var errBroken = errors.New("the card has burnt out")

// brokenListener takes no connection.
type brokenListener struct{ net.Listener }

func (brokenListener) Accept() (net.Conn, error) { return nil, errBroken }

func brokenListen(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	return brokenListener{l}, err
}

// brokenLink receives nothing.
type brokenLink struct{ link.Link }

func (brokenLink) Receive([]link.Packet) (int, error) { return 0, errBroken }

func openBroken(at netip.AddrPort) (link.Link, error) {
	l, err := link.OpenUDP(at)
	return brokenLink{l}, err
}

// A switch or a server whose link or control service fails ends with the reason, and frees its
// ports.
func TestProcessesEndWithWhatTheyServeBy(t *testing.T) {
	for what, m := range map[string]Machine{"control service": {Listen: brokenListen}, "": {Link: openBroken}} {
		c := newCluster(t, 1)
		ends := func(process string, err error) {
			t.Helper()
			if !errors.Is(err, errBroken) || !strings.Contains(err.Error(), what) {
				t.Errorf("the %s ends with %v, want the error of its %q", process, err, what)
			}
		}
		ends("switch", RunSwitch(t.Context(), Env{Config: c, Machine: m, Log: testLog(t)}))
		stop := runSwitch(t, c, testLog(t))
		_, err := RunServer(t.Context(), Env{Config: c, Machine: m, Log: testLog(t)})
		ends("server", err)
		mustTrain(t, c)
		stop()
	}
}
