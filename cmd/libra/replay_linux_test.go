// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/wire"
)

// metric reads a metric of the process on a host, 0 if it does not show it yet.
func metric(t *testing.T, c *cluster.Config, h *testbed.Node, name string) (value float64) {
	t.Helper()
	dial := func(ctx context.Context, _, at string) (conn net.Conn, err error) {
		err = h.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", at)
			return err
		})
		return conn, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	r, err := client.Get("http://" + c.Telemetry.At(h.IP).String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		series, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if of, _, _ := strings.Cut(series, "{"); of == name {
			if value, err = strconv.ParseFloat(text, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	return value
}

// waitMetric waits until a metric of the process on a host is at least a value.
func waitMetric(t *testing.T, c *cluster.Config, h *testbed.Node, name string, least float64) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		value := metric(t, c, h, name)
		if value >= least {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is %v, and does not become %v", name, value, least)
		}
	}
}

// While the daemon of a switch is suspended, no process harvests, and its XDP program goes on to
// acknowledge frames. A worker keeps no more of them than job.replay_mib: then its push waits, and
// its statistics say so. The training goes on when the daemon does, or when the server gives it up.
func TestSuspendedSwitchKeepsLogsSmall(t *testing.T) {
	t.Parallel()
	for name, silence := range map[string]time.Duration{"until it goes on": 2 * time.Minute, "until a fence": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			b := newKillBed(t, cluster.BackendAFXDP)
			c := b.config
			// A mini-batch has more hot pairs than the log has room for, and many may come before a harvest.
			// An epoch, at whose end a worker waits until all is committed, has more of them than the test
			// waits for.
			c.Job.Sync, c.Job.ReplayMiB, c.Job.Accumulate, c.Job.Staleness = false, 1, 1, 64
			c.Server.CheckpointSteps, c.Switch.Silence, c.Silence, c.Telemetry.Port = 0, silence, time.Minute, 7790
			c.Data.Synthetic.Hot, c.Data.Synthetic.HotShare, c.Data.Synthetic.Rows = 4000, 0.9, 4000
			c.Model.Factors, c.Model.Batch, c.Model.Epochs = 63, 1000, 1
			b.writeWith(t, 4000)
			c.Data.Synthetic.Rows = 400_000
			if err := c.Write(b.path); err != nil {
				t.Fatal(err)
			}
			sw := b.run(t, theSwitch, "switch")
			server, workers := b.train(t)
			host := b.bed.Host(1) // of worker 1
			for _, w := range workers {
				waitSaid(t, w, "telemetry is shown", 1)
			}
			waitMetric(t, c, host, "libra_worker_pushes_total", 3)
			waits := metric(t, c, host, "libra_worker_log_waits_total")
			_ = sw.Process.Signal(syscall.SIGSTOP)

			// It is full when another frame does not fit.
			const size, entry = 1 << 20, 8
			waitMetric(t, c, host, "libra_worker_log_bytes", float64(size-entry-wire.HotLen(wire.DefaultStripes)+1))
			waitMetric(t, c, host, "libra_worker_log_waits_total", waits+1)
			if n := metric(t, c, host, "libra_worker_log_bytes"); n > size {
				t.Errorf("a log of %v bytes, with job.replay_mib: 1", n)
			}
			pushes := metric(t, c, host, "libra_worker_pushes_total")
			if silence > time.Minute {
				_ = sw.Process.Signal(syscall.SIGCONT)
			}
			waitMetric(t, c, host, "libra_worker_pushes_total", pushes+10)
			fenced := strings.Contains(server.err.String(), "the job goes on without its aggregator")
			if settled := metric(t, c, host, "libra_worker_settled_frames_total"); fenced != (silence < time.Minute) || fenced != (settled > 0) {
				t.Errorf("a fence: %v; %v frames are settled\n%s", fenced, settled, &server.err)
			}
			_ = sw.Process.Signal(syscall.SIGCONT)
			for _, p := range append(workers, server) {
				_ = p.Process.Signal(os.Interrupt)
				_ = p.Wait() // interrupted
			}
			endSwitch(t, sw)
		})
	}
}
