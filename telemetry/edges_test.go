// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"testing"
	"time"
)

// A share of the times that the zeros make up is zero; beyond it, the other times begin.
func TestQuantileOfZeros(t *testing.T) {
	var h Histogram
	for range 5 {
		h.Record(0)
		h.Record(time.Millisecond)
	}
	d := h.Distribution()
	if got := d.Quantile(0.5); got != 0 {
		t.Errorf("median %v, want 0: half of the times are", got)
	}
	if got := d.Quantile(0.6); got < 900*time.Microsecond || got > 1100*time.Microsecond {
		t.Errorf("%v, want a millisecond or so", got)
	}
}

// Records that wait keep none of the others waiting, whatever their order.
func TestWaitingRecordsHoldNobodyUp(t *testing.T) {
	j := NewJoiner()
	const each = 20
	for n := range uint32(2 * each) {
		r := Record{Job: 1, Worker: 2, Number: n, Total: 10, Queue: 1, Process: 1}
		j.AddWorker(r)
		if n%2 == 0 {
			r.Total = 2
			j.AddServer(r)
		}
	}
	if rows := j.EndRound(nil, false); len(rows) != each {
		t.Errorf("%d rows are complete, want %d", len(rows), each)
	}
	if rows := j.EndRound(nil, true); len(rows) != each || j.Whole != each || j.Half != each {
		t.Errorf("at the end %d rows, %+v", len(rows), j.Joined)
	}
}

// Summaries have the names of their series, in the order of these.
func TestSummaries(t *testing.T) {
	var h Histogram
	h.Record(3 * time.Millisecond)
	got := Summaries([]Series{
		{Key{Pull, ServerQueue, Worker(7)}, h.Distribution()}, {Key{Push, Answer, All}, Distribution{}},
	})
	if len(got) != 2 || got[0].Op != "pull" || got[0].Part != "server queue" || got[0].Peer != "worker 7" || got[0].Count != 1 ||
		got[0].Mean != 3*time.Millisecond || got[1].Op != "push" || got[1].Part != "answer" || got[1].Peer != "all" || got[1].Count != 0 {
		t.Errorf("%+v", got)
	}
}

// All parts have the names that records and metrics of other programs have.
func TestPartNames(t *testing.T) {
	for i, want := range []string{"total", "repeat", "worker queue", "worker process", "server queue", "server process",
		"aggregator process", "submit", "send", "answer"} {
		if got := Part(i).String(); got != want {
			t.Errorf("part %d is %q, want %q", i, got, want)
		}
	}
}
