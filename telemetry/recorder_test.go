// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// No recorder is what an endpoint has if nothing is drawn: it can be read.
func TestNothingIsRecordedWithoutSample(t *testing.T) {
	r := NewRecorder(0, nil, nil)
	if r != nil || r.Series() != nil {
		t.Errorf("%v", r)
	}
	if recs, torn := r.Records(nil); recs != nil || torn != 0 {
		t.Errorf("%v, %d torn", recs, torn)
	}
}

func TestSeriesAreInOrder(t *testing.T) {
	r := NewRecorder(1, nil, nil)
	want := []Key{
		{Hot, Total, Aggregator}, {Cold, Total, Server(0)}, {Cold, Total, Server(1)}, {Cold, WorkerQueue, Server(0)}, {Push, Submit, All},
	}
	for i, k := range slices.Backward(want) {
		for range i + 1 {
			r.Time(k, time.Duration(i+1))
		}
	}
	var got []Key
	for i, s := range r.Series() {
		got = append(got, s.Key)
		if s.Count() != uint64(i+1) || s.Mean() != time.Duration(i+1) {
			t.Errorf("%v: %d times, mean %v", s.Key, s.Count(), s.Mean())
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// The number of series is bounded whatever the number of peers, and no time is lost: those of later
// peers are counted together.
func TestLaterPeersShareSeries(t *testing.T) {
	r := NewRecorder(1, nil, nil)
	const peers = 200
	r.Time(Key{Push, Submit, All}, 1)
	for range 2 {
		for id := range uint16(peers) {
			r.Time(Key{Cold, ServerQueue, Worker(id + 1)}, 1)
			r.Time(Key{Cold, ServerProcess, Worker(id + 1)}, 1)
		}
	}
	all := r.Series()
	if len(all) != 2*(MaxPeers+1)+1 {
		t.Errorf("%d series", len(all))
	}
	total, others := uint64(0), uint64(0)
	for _, s := range all {
		total += s.Count()
		if s.Peer == Others {
			others += s.Count()
		}
	}
	if total != 4*peers+1 || others != 4*(peers-MaxPeers) {
		t.Errorf("%d times, %d of them of others", total, others)
	}
}

func TestNames(t *testing.T) {
	for want, got := range map[string]string{
		"worker 7": Worker(7).String(), "server 0": Server(0).String(), "server 3": Server(3).String(), "aggregator": Aggregator.String(),
		"other": Others.String(), "all": All.String(), "hot": Hot.String(), "push": Push.String(), "9": Op(9).String(), "total": Total.String(),
		"answer": Answer.String(), "server queue": ServerQueue.String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What is measured of each frame allocates nothing, once its series exists.
func TestRecordingAllocatesNothing(t *testing.T) {
	start := time.Now()
	r := NewRecorder(1, func() time.Duration { return time.Since(start) }, sys.KernelClock)
	n := testing.AllocsPerRun(100, func() {
		r.Time(Key{Cold, Total, Server(1)}, 12345)
		r.Write(&Record{Op: Cold, Total: 12345})
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDraw(b *testing.B) {
	d, drawn := NewDraw(DefaultSample), 0
	for n := uint32(0); b.Loop(); n++ {
		if d.Draws(n) {
			drawn++
		}
	}
	if b.N > 1000 && drawn == 0 {
		b.Error("nothing is drawn")
	}
}

func BenchmarkHistogram(b *testing.B) {
	var h Histogram
	for d := time.Duration(1); b.Loop(); d = d*5%999_983 + 1 {
		h.Record(d)
	}
}

func BenchmarkRing(b *testing.B) {
	var r Ring
	for b.Loop() {
		r.Write(&Record{Op: Cold, Total: 5, Queue: 1, Process: 2})
	}
}

// BenchmarkFrame is what a worker does with a drawn frame, without reading the clock.
func BenchmarkFrame(b *testing.B) {
	r := NewRecorder(1, nil, nil)
	for d := time.Duration(1); b.Loop(); d = d*5%999_983 + 1 {
		for part := Total; part <= WorkerProcess; part++ {
			if part != Repeat {
				r.Time(Key{Cold, part, Server(0)}, d)
			}
		}
		r.Write(&Record{Op: Cold, Total: d, Queue: d, Process: d})
	}
}

// A stamp of the kernel's clock is when a packet arrived, unless it is in the future or too early:
// then it is counted, and the packet arrived when it was received.
func TestStampsOfAnotherClockAreCounted(t *testing.T) {
	const offset, received = time.Hour, 30 * time.Second
	r := NewRecorder(1, func() time.Duration { return 0 }, func() (time.Duration, bool) { return offset, true })
	const used, unused = true, false
	for stamp, want := range map[time.Duration]bool{
		offset + received:                      used,
		offset + received - 10*time.Second:     used,
		offset + received + 1:                  unused,
		offset + received - 10*time.Second - 1: unused,
		time.Second:                            unused,
		-time.Second:                           unused,
	} {
		before := r.UnusedStamps()
		at, stamped := r.Arrival(stamp, received-StampLimit, received)
		switch counted := r.UnusedStamps() - before; {
		case want == used && (at != stamp-offset || !stamped || counted != 0),
			want == unused && (at != received || stamped || counted != 1):
			t.Errorf("stamp %v: %v, %v, %d counted", stamp, at, stamped, counted)
		}
	}
	if at, stamped := r.Arrival(0, 0, received); at != received || stamped || r.UnusedStamps() != 4 {
		t.Errorf("without a stamp: %v, %v, %d counted", at, stamped, r.UnusedStamps())
	}
	if n := (*Recorder)(nil).UnusedStamps(); n != 0 {
		t.Errorf("without telemetry: %d", n)
	}
}
