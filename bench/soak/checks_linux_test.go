// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A packet that a socket dropped is in one counter of one end.
func TestReportHasEveryDropOnce(t *testing.T) {
	h := newRunner(Defaults())
	defer h.thread.Close()
	l := &link{name: "process", report: &LinkReport{}}
	l.total.addTally(tally{
		client: counts{Sent: 20, Corrupt: 1, Sockets: map[string]uint64{socketRxDropped: 2}},
		server: counts{Sent: 15, Corrupt: 2, Sockets: map[string]uint64{socketRxDropped: 3, socketRxFull: 1}},

		answered: 12, interfaces: map[string]uint64{"near TX": 1, "near RX": 7},
	})
	h.links = []*link{l}
	h.report.Events = []Event{
		{Link: "process", Kind: "b", Recovery: 3, Lost: 1}, {Link: "process", Kind: "b", Recovery: 5, Lost: 2},
		{Link: "process", Kind: "a", Recovery: 1}, {Link: "xdp", Kind: "a", Recovery: 9},
	}
	h.finishReport()
	if r := l.report; r.Sent != 20 || r.Dropped != 7 || r.Destroyed != 1 || r.Corrupt != 3 || r.Sockets[socketRxDropped] != 5 || r.Interfaces["near RX"] != 7 {
		t.Errorf("%+v", *r)
	}
	all := h.report.Recoveries
	if len(all) != 2 || all[0].Kind != "a" || all[0].Times.Max != 1 || all[1].Lost != 3 || all[1].Times != (Times{Count: 2, P50: 3, P90: 5, P99: 5, Max: 5}) {
		t.Errorf("%+v", all)
	}
}

func TestCountsAddUp(t *testing.T) {
	var got counts
	for _, c := range []counts{
		{Sent: 10, Late: 2, Latest: 5, Sockets: map[string]uint64{"a": 1}},
		{Sent: 20, Corrupt: 3, FirstCorrupt: "bad", Late: 1, Latest: 7, LostWakeups: 1},
		{Corrupt: 1, FirstCorrupt: "worse", Late: 1, Latest: 4, Sockets: map[string]uint64{"a": 2, "b": 1}},
	} {
		got.addCounts(c)
	}
	want := counts{Sent: 30, Corrupt: 4, FirstCorrupt: "bad", Late: 4, Latest: 7, LostWakeups: 1, Sockets: map[string]uint64{"a": 3, "b": 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A sleep shows a lost wake-up if packets were there at its end, it was long, and it returned in
// time.
func TestUnwokenSleeps(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		took, timeout time.Duration
		overslept     bool
		want          bool
	}{
		{50 * ms, 50 * ms, true, true},
		{59 * ms, 50 * ms, true, true},
		{60 * ms, 50 * ms, true, false},
		{50 * ms, 50 * ms, false, false},
		{200 * ms, -1, true, true},
		{19 * ms, 19 * ms, true, false},
	} {
		var s sleep
		if s.recordEnd(c.took, c.timeout, c.overslept); s.took != c.took || s.unwoken != c.want {
			t.Errorf("%+v: %v", c, s.unwoken)
		}
	}
}
