// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/testbed"
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
	for _, m := range regexp.MustCompile(`(?m)^`+name+`\{[^}]*\} (\S+)$`).FindAllSubmatch(page, -1) {
		if value, err = strconv.ParseFloat(string(m[1]), 64); err != nil {
			t.Fatal(err)
		}
	}
	return value
}

// While the daemon of a switch is suspended, nobody harvests, and its XDP program goes on to acknowledge frames. A
// worker then keeps no more of them than job.replay_mib: its pushes wait, and its statistics say so. When the daemon
// goes on, so does the training.
func TestSuspendedSwitchKeepsLogsSmall(t *testing.T) {
	t.Parallel()
	b := newKillBed(t, cluster.BackendAFXDP)
	c := b.config
	c.Job.Sync, c.Job.ReplayMiB, c.Telemetry.Port = false, 1, 7790
	c.Server.CheckpointSteps, c.Switch.Silence, c.Silence = 0, time.Minute, time.Minute // there is no fence meanwhile
	// The pushes of a second fill the log: then a worker would wait for its first report.
	c.Data.Synthetic.Hot, c.Data.Synthetic.Rows, c.Model.Batch, c.Model.Epochs = 16_000, 48_000, 4000, 10
	b.writeWith(t, 16_000)
	sw := b.run(t, theSwitch, "switch")
	server, workers := b.train(t)
	for _, w := range workers {
		waitSaid(t, w, "telemetry is shown", 1)
	}
	_ = sw.Process.Signal(syscall.SIGSTOP)
	var most float64
	for end := time.Now().Add(time.Minute); metric(t, c, b.bed.Host(1), "libra_worker_log_waits_total") == 0; {
		most = max(most, metric(t, c, b.bed.Host(1), "libra_worker_log_bytes"))
		if time.Now().After(end) {
			t.Fatalf("no push has waited; a log of %v bytes at most", most)
		}
	}
	frames := metric(t, c, b.bed.Host(1), "libra_worker_log_frames")
	for range 5 { // it has no room for another one
		most = max(most, metric(t, c, b.bed.Host(1), "libra_worker_log_bytes"))
		time.Sleep(100 * time.Millisecond)
	}
	if most > 1<<20 || most < 1<<19 {
		t.Errorf("a log of %v bytes, with job.replay_mib: 1", most)
	}
	t.Logf("%v bytes in %v frames at most", most, frames)
	_ = sw.Process.Signal(syscall.SIGCONT)
	for i, w := range workers {
		if err := w.Wait(); err != nil {
			t.Errorf("worker %d: %v\n%s", i+1, err, &w.err)
		}
		if strings.Contains(w.out.String(), `"log_waits":0,`) && i == 0 {
			t.Errorf("its report has no waits:\n%s", &w.out)
		}
	}
	if err := server.Wait(); err != nil {
		t.Errorf("server: %v\n%s", err, &server.err)
	}
	if strings.Contains(server.err.String(), "goes on without its aggregator") {
		t.Errorf("there was a fence:\n%s", &server.err)
	}
	endSwitch(t, sw)
}
