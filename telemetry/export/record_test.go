// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/telemetry"
)

// recorded shows a process with a recorder.
func recorded(t *testing.T, side Side) (r *telemetry.Recorder, at netip.AddrPort) {
	t.Helper()
	r = telemetry.NewRecorder(1, nil, nil)
	_, url := start(t, Config{Process: string(side), Side: side, Sample: 1,
		Recorders: func() []*telemetry.Recorder { return []*telemetry.Recorder{r} }})
	return r, netip.MustParseAddrPort(url)
}

// TestRecording reads a worker and a server while both go on, as does a third process that does not
// answer: each frame becomes one row, and the error names the third.
func TestRecording(t *testing.T) {
	worker, at1 := recorded(t, WorkerSide)
	server, at2 := recorded(t, ServerSide)
	write := func(n uint32) {
		worker.Write(&telemetry.Record{Time: time.Duration(n), Worker: 7, Number: n, Op: telemetry.Cold, Queue: 1, Process: 2, Total: 100})
		server.Write(&telemetry.Record{Time: time.Duration(n), Worker: 7, Number: n, Op: telemetry.Cold, Queue: 10, Process: 20, Total: 30})
		worker.Write(&telemetry.Record{Time: time.Duration(n), Job: 1, Worker: 7, Number: n, Total: 100}) // of an agent's other job
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := map[uint32]int{}
	next := uint32(0)
	silent := freePort(t)
	r := Recording{Log: quiet, Every: time.Millisecond, Jobs: []uint16{0}, Sources: []Source{{"worker 7", at1}, {"ps", at2}, {"worker 8", silent}},
		Write: func(rows []telemetry.Row) error {
			for _, row := range rows {
				got[row.Number]++
				want := []string{fmt.Sprint(row.Number), "0", "7", "0", "0", fmt.Sprint(row.Number), "cold", "0", "0", "100", "", "1", "2", "10", "20", "67", "whole", "receive"}
				if diff := cmp.Diff(want, Fields(&row)); diff != "" {
					t.Errorf("row (-want +got):\n%s", diff)
				}
			}
			if next++; next < 10 {
				write(2 * next)
				write(2*next + 1)
			} else {
				cancel()
			}
			return nil
		}}
	n, err := r.Run(ctx)
	if err == nil || !strings.Contains(err.Error(), "worker 8 at "+silent.String()) || strings.Contains(err.Error(), "worker 7") {
		t.Errorf("%v", err)
	}
	for number := uint32(2); number < 20; number++ {
		if got[number] != 1 {
			t.Errorf("frame %d is in %d rows", number, got[number])
		}
	}
	if n.Whole != 18 || n.Half+n.Unclaimed+n.Impossible != 0 {
		t.Errorf("%+v", n)
	}
}

// A program that does not show records, or not all, is named with a remedy; no record of a response
// that is cut off is used.
func TestRecordsOfSomethingElse(t *testing.T) {
	const head = `{"process":"ps","side":"server","sample":1}` + "\n"
	const record = `{"time_ns":1,"job":0,"worker":0,"server":0,"epoch":0,"number":1,"op":"cold","queue_ns":0,"process_ns":0,"total_ns":0,"request_bytes":0,"response_bytes":0}` + "\n"
	for body, want := range map[string]string{
		"":                            "does another program listen there?",
		"<html>":                      "does another program listen there?",
		head:                          "ask again",
		head + record:                 "ask again",
		head + record[:40]:            "ask again",
		head + `{"records":1}` + "\n": "ask again",
		head + record + record + `{"records":1,"torn":0}`:                   "ask again",
		head + "{}\n{\"x\":1}\n" + `{"records":2,"torn":0}`:                 "record 2",
		head + strings.Replace(record, "cold", "warm", 1) + `{"records":1}`: "newer",
		head + record + `{"records":1,"torn":3}`:                            "",
	} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // one reading
		r := Recording{Log: quiet, Sources: []Source{{"ps", netip.MustParseAddrPort(other.Listener.Addr().String())}},
			Write: func([]telemetry.Row) error { return nil }}
		n, err := r.Run(ctx)
		other.Close()
		switch {
		case want == "" && (err != nil || n.Torn != 3 || n.Unclaimed != 1):
			t.Errorf("%q: %v, %+v", body, err, n)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || n != Recorded{}):
			t.Errorf("%q: %v, %+v", body, err, n)
		}
	}
}

// Rows leave out what is not known.
func TestRowsLeaveOutWhatIsUnknown(t *testing.T) {
	for state, want := range map[telemetry.State]string{
		telemetry.Whole: "|1|2|3|4|5", telemetry.Half: "|1|2|||", telemetry.Ambiguous: "|1|2|||", telemetry.Resent: "9|||||",
	} {
		row := telemetry.Row{State: state, ServerQueue: 3, ServerProcess: 4, Network: 5,
			Record: telemetry.Record{Queue: 1, Process: 2, Repeat: 9}}
		fields := Fields(&row)
		if got := strings.Join(fields[10:16], "|"); got != want || len(fields) != len(Columns()) || fields[16] != state.String() {
			t.Errorf("%v: %s, want %s", state, got, want)
		}
	}
	hot := telemetry.Row{Network: 5, Record: telemetry.Record{Server: telemetry.NoServer, Queue: 1, Process: 2}}
	if f := Fields(&hot); strings.Join(f[10:16], "|") != "|1|2|||5" || f[3] != "" {
		t.Errorf("hot: %v", f)
	}
}

// Rows say from when on their queues count, at both ends or at one.
func TestRowsSayWhereQueuesBegin(t *testing.T) {
	for want, rows := range map[string][]telemetry.Row{
		"receive": {{}, {State: telemetry.Half}, {Record: telemetry.Record{Server: telemetry.NoServer}}},
		"worker":  {{Record: telemetry.Record{Stamped: true}}},
		"server":  {{ServerStamped: true}},
		"stamp": {{ServerStamped: true, Record: telemetry.Record{Stamped: true}}, {State: telemetry.Half, Record: telemetry.Record{Stamped: true}},
			{Record: telemetry.Record{Server: telemetry.NoServer, Stamped: true}}},
	} {
		for _, r := range rows {
			if f := Fields(&r); f[17] != want {
				t.Errorf("%+v: %s, want %s", r, f[17], want)
			}
		}
	}
}
