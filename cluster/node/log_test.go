// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/test/testlog"
)

// lines collects what processes log.
type lines struct{ testlog.Log }

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Each process says at its start over what its frames go.
func TestProcessesNameTheirBackend(t *testing.T) {
	c := newCluster(t, 1)
	var all lines
	startSwitchWith(t, c, all.logger())
	if err := trainWith(t.Context(), c, hooks{}, all.logger()).err(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`msg="switch serves" process=switch data_plane="go model over udp"`,
		`msg="parameter server serves" process=ps backend=udp`,
		`msg="worker trains" process="worker 1" worker=1 backend=udp`,
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("%s is not in the log:\n%s", want, &all)
		}
	}
}

// A worker that cannot reach the switch does not enter the job at the server,
// where it would count as lost when it gives up.
func TestUnreachableSwitchKeepsAWorkerOut(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	away := c.Workers[0].Address
	elsewhere, err := net.Listen("tcp", netip.AddrPortFrom(away, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		if conn, err := elsewhere.Accept(); err == nil {
			conn.Close()
			cancel() // the worker has come so far, and both processes end
		}
	}()
	var all lines
	log := slog.New(slog.NewTextHandler(&all, &slog.HandlerOptions{Level: slog.LevelDebug}))
	trainWith(ctx, c, hooks{change: func(_ uint16, theirs *cluster.Config) {
		theirs.Switch.Control = elsewhere.Addr().(*net.TCPAddr).AddrPort()
	}}, log)
	if text := all.String(); !strings.Contains(text, "parameter server serves") || strings.Contains(text, "worker connected") {
		t.Errorf("the worker entered the job, or the server did not serve:\n%s", text)
	}
}
