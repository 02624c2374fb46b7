// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// halves returns what both ends of a frame measured of it.
func halves(number uint32) (worker, server Record) {
	worker = Record{Job: 1, Worker: 2, Server: 3, Epoch: 4, Number: number, Op: Cold, Queue: 10, Process: 20, Total: 1000}
	server = Record{Job: 1, Worker: 2, Server: 3, Epoch: 4, Number: number, Op: Cold, Queue: 100, Process: 200, Total: 300}
	return worker, server
}

// TestPartsAddUp joins the records of frames whose parts are drawn at random, in any order: the
// parts of each row add up to its total, and each is what was spent there.
func TestPartsAddUp(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	j := NewJoiner()
	network := map[uint32]time.Duration{}
	const frames = 1000
	for _, i := range random.Perm(frames) {
		n := uint32(i)
		w, s := halves(n)
		for _, part := range []*time.Duration{&w.Queue, &w.Process, &s.Queue, &s.Process} {
			*part = time.Duration(random.Int64N(1e9))
		}
		network[n] = time.Duration(random.Int64N(1e9))
		w.Total = w.Queue + w.Process + s.Queue + s.Process + network[n]
		if n%2 == 0 {
			j.AddWorker(w)
			j.AddServer(s)
		} else {
			j.AddServer(s)
			j.AddWorker(w)
		}
	}
	rows := j.EndRound(nil, false)
	for _, r := range rows {
		if sum := r.Queue + r.Process + r.ServerQueue + r.ServerProcess + r.Network; sum != r.Total || r.State != Whole || r.Network != network[r.Number] {
			t.Errorf("%+v: its parts add up to %v, and its network is %v", r, sum, network[r.Number])
		}
	}
	if len(rows) != frames || j.Joined != (Joined{Whole: frames}) {
		t.Errorf("%d rows, %+v", len(rows), j.Joined)
	}
}

// TestRowsSayWhatIsUnknown has one frame of each kind.
func TestRowsSayWhatIsUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(w, s *Record)
		servers int // records of the server
		want    Row // the record of which is the worker's
		none    bool
		counts  Joined
	}{
		"whole":      {servers: 1, want: Row{ServerQueue: 100, ServerProcess: 200, Network: 670}, counts: Joined{Whole: 1}},
		"half":       {want: Row{State: Half, Network: 970}, counts: Joined{Half: 1}},
		"ambiguous":  {servers: 2, want: Row{State: Ambiguous, Network: 970}, counts: Joined{Ambiguous: 1}},
		"a resent":   {change: func(w, s *Record) { w.Repeated, w.Repeat, w.Queue, w.Process = true, 400, 0, 0 }, servers: 1, want: Row{State: Resent}, counts: Joined{Resent: 1}},
		"hot":        {change: func(w, s *Record) { w.Op, w.Server = Hot, NoServer }, want: Row{Network: 970}, counts: Joined{Whole: 1}},
		"impossible": {change: func(w, s *Record) { s.Queue = 5000 }, servers: 1, none: true, counts: Joined{Impossible: 1}},
		"too long":   {change: func(w, s *Record) { w.Repeated, w.Repeat = true, 2000 }, none: true, counts: Joined{Impossible: 1}},
		"negative":   {change: func(w, s *Record) { s.Process, s.Queue = -1, 0 }, servers: 1, none: true, counts: Joined{Impossible: 1}},
		"another epoch": {change: func(w, s *Record) { s.Epoch++ }, servers: 1, want: Row{State: Half, Network: 970},
			counts: Joined{Half: 1, Unclaimed: 1}},
		"another server": {change: func(w, s *Record) { s.Server++ }, servers: 1, want: Row{State: Half, Network: 970},
			counts: Joined{Half: 1, Unclaimed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := halves(5)
			if c.change != nil {
				c.change(&w, &s)
			}
			j := NewJoiner()
			j.AddWorker(w)
			for range c.servers {
				j.AddServer(s)
			}
			var want []Row
			if !c.none {
				c.want.Record = w
				want = []Row{c.want}
			}
			if diff := cmp.Diff(want, j.EndRound(nil, true)); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if j.Joined != c.counts {
				t.Errorf("counted %+v, want %+v", j.Joined, c.counts)
			}
		})
	}
}

// A record waits for its other half for two rounds, whichever end is asked first.
func TestRecordsWaitForTheirOtherHalf(t *testing.T) {
	for late := range 4 {
		j := NewJoiner()
		w1, s1 := halves(1)
		w2, s2 := halves(2)
		j.AddWorker(w1)
		j.AddServer(s2)
		var rows []Row
		for round := range 6 {
			if round == late {
				j.AddServer(s1)
				j.AddWorker(w2)
			}
			rows = j.EndRound(rows, round == 5)
		}
		whole := 0
		for _, r := range rows {
			if r.State == Whole {
				whole++
			}
		}
		if want := map[bool]int{true: 2, false: 0}[late <= patience]; whole != want || len(rows) != 2 {
			t.Errorf("%d rounds late, %d of %d rows are whole, want %d", late, whole, len(rows), want)
		}
	}
}

// A record has the same fields after it was shown and read, and an operation that is not known is
// refused.
func TestRecordsAsJSON(t *testing.T) {
	w, _ := halves(7)
	w.Op, w.Repeated, w.Repeat, w.Time, w.Request, w.Response = Find, true, 9, 10, 11, 12
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	var got Record
	if err := json.Unmarshal(text, &got); err != nil || got != w {
		t.Errorf("%s becomes %+v, %v", text, got, err)
	}
	if err := json.Unmarshal([]byte(`{"op": "lukewarm"}`), &got); err == nil {
		t.Error("an operation that does not exist is read")
	}
}

// TestPlus adds distributions whose buckets overlap, are apart, or are empty.
func TestPlus(t *testing.T) {
	times := [][]time.Duration{nil, {0, 5}, {100, 200, 300}, {90, time.Second}, {time.Minute}}
	of := func(all []time.Duration) Distribution {
		var h Histogram
		for _, d := range all {
			h.Record(d)
		}
		return h.Distribution()
	}
	for _, a := range times {
		for _, b := range times {
			want := of(slices.Concat(a, b))
			if diff := cmp.Diff(want, of(a).Plus(of(b))); diff != "" {
				t.Errorf("%v and %v (-want +got):\n%s", a, b, diff)
			}
		}
	}
}
