// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/wire"
)

const ms = Time(time.Millisecond)

func newWindow(t testing.TB, cfg Config) *Window {
	t.Helper()
	w, err := NewWindow(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// add adds and sends a frame whose cookie is its number.
func add(t testing.TB, w *Window, now Time) uint32 {
	t.Helper()
	seq, ok := w.Add(now, Entry{Cookie: uint64(w.NextSeq())})
	if !ok {
		t.Fatal("window is full")
	}
	w.Sent(now, 1)
	return seq
}

// resent returns the frames that are due.
func resent(t testing.TB, w *Window, now Time) []uint32 {
	t.Helper()
	var seqs []uint32
	w.Resend(now, func(seq uint32, e Entry) bool {
		if e.Cookie != uint64(seq) {
			t.Fatalf("frame %d is resent with the entry of %d", seq, e.Cookie)
		}
		seqs = append(seqs, seq)
		return true
	})
	return seqs
}

func expect(t testing.TB, w *Window, now Time, want ...uint32) {
	t.Helper()
	if diff := cmp.Diff(want, resent(t, w, now)); diff != "" {
		t.Fatalf("resent at %v (-want +got):\n%s", time.Duration(now), diff)
	}
}

func TestWindowSpansItsSize(t *testing.T) {
	w := newWindow(t, Config{Size: 4})
	for range 4 {
		add(t, w, 0)
	}
	for _, seq := range []uint32{2, 3, 4} {
		if _, ok := w.Ack(ms, seq); !ok {
			t.Fatalf("frame %d is not outstanding", seq)
		}
	}
	if _, ok := w.Add(ms, Entry{}); ok || !w.Full() || w.Outstanding() != 1 || w.Base() != 1 {
		t.Fatalf("frame 5 added: %v, full: %v, outstanding %d, base %d; want no frame beyond 1+4",
			ok, w.Full(), w.Outstanding(), w.Base())
	}
	w.Ack(ms, 1)
	if w.Full() || w.Base() != 5 || w.NextSeq() != 5 {
		t.Fatalf("full: %v, base %d, next %d; want an empty window at 5", w.Full(), w.Base(), w.NextSeq())
	}
}

func TestWindowReturnsEntryOnce(t *testing.T) {
	w := newWindow(t, Config{})
	want := Entry{Cookie: 1 << 40, Len: 1414, Owner: 9, Copies: 1}
	w.Add(0, Entry{Cookie: 1 << 40, Len: 1414, Owner: 9})
	w.Add(0, Entry{})
	w.Add(0, Entry{})
	w.Sent(0, 2)
	got, ok := w.Ack(ms, 1)
	if !ok || got != want {
		t.Fatalf("Ack returns %+v, %v; want %+v", got, ok, want)
	}
	if _, ok := w.Ack(ms, 1); ok {
		t.Error("a second acknowledgement returns the entry again")
	}
	if _, ok := w.Refuse(ms, 1); ok {
		t.Error("a refusal after the acknowledgement returns the entry again")
	}
	if _, ok := w.Ack(ms, 3); ok {
		t.Error("a frame that was added and never sent is acknowledged")
	}
	if _, ok := w.Ack(ms, 4); ok {
		t.Error("a frame that was never added is acknowledged")
	}
	if _, ok := w.Refuse(ms, 2); !ok || w.Outstanding() != 1 || w.NextUnsent() != 3 || w.Base() != 3 {
		t.Errorf("refused: %v, %d outstanding from %d; want frame 3, which is not sent", ok, w.Outstanding(), w.Base())
	}
	if diff := cmp.Diff(Stats{
		Sent: 3, Acked: 1, Refused: 1, Repeated: 2, Unknown: 2,
		SRTT: time.Millisecond, RTO: 6 * time.Millisecond, Bound: 512,
	}, w.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

// TestEntriesHaveTheirTimes sends a frame late and twice: its entry has the time of adding nowhere,
// and neither has it what an earlier frame left in its place, or what the owner entered.
func TestEntriesHaveTheirTimes(t *testing.T) {
	w := newWindow(t, Config{Size: 1, InitialRTO: 20 * time.Millisecond})
	for seq := uint32(1); seq <= 2; seq++ {
		start := Time(seq) * 1000 * ms
		entry := Entry{Cookie: 7, Owner: seq, First: 1, Last: 2, Copies: 3}
		if _, ok := w.Add(start, entry); !ok {
			t.Fatal("the window is full")
		}
		if e, ok := w.Sending(seq); ok {
			t.Errorf("a frame that is not sent is on its way: %+v", e)
		}
		w.Sent(start+5*ms, 1)
		want := Entry{Cookie: 7, Owner: seq, First: start + 5*ms, Last: start + 5*ms, Copies: 1}
		if e, ok := w.Sending(seq); !ok || e != want {
			t.Errorf("%+v, %v; want %+v", e, ok, want)
		}
		w.Resend(start+30*ms, func(_ uint32, e Entry) bool {
			if e != want {
				t.Errorf("%+v is sent again, want %+v", e, want)
			}
			return true
		})
		want.Last, want.Copies = start+30*ms, 2
		if e, ok := w.Sending(seq); !ok || e != want {
			t.Errorf("sent again: %+v, %v; want %+v", e, ok, want)
		}
		if e, ok := w.Ack(start+31*ms, seq); !ok || e != want {
			t.Errorf("answered: %+v, %v; want %+v", e, ok, want)
		}
		for _, other := range []uint32{seq - 1, seq, seq + 1} {
			if e, ok := w.Sending(other); ok {
				t.Errorf("frame %d is on its way after the answer: %+v", other, e)
			}
		}
	}
}

// TestStatsPlus adds statistics in which each field has a value of its own: none is forgotten.
func TestStatsPlus(t *testing.T) {
	var a, b, want Stats
	one, other, sum := reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem(), reflect.ValueOf(&want).Elem()
	for i := range one.NumField() {
		x, y := uint64(10+i), uint64(1000-3*i)
		total := x + y
		if one.Field(i).Type() == reflect.TypeFor[time.Duration]() {
			total = y // the longer one
		}
		for f, v := range map[reflect.Value]uint64{one.Field(i): x, other.Field(i): y, sum.Field(i): total} {
			if f.CanUint() {
				f.SetUint(v)
			} else {
				f.SetInt(int64(v))
			}
		}
	}
	for _, got := range []Stats{a.Plus(b), b.Plus(a)} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestRetransmittedFrameGivesNoSample(t *testing.T) {
	w := newWindow(t, Config{})
	seq := add(t, w, 0)
	resent(t, w, 30*ms)
	w.Ack(31*ms, seq)
	if s := w.Stats(); s.SRTT != 0 || s.RTO != 40*time.Millisecond {
		t.Fatalf("SRTT %v, RTO %v; want no sample and the doubled timeout (Karn's rule)", s.SRTT, s.RTO)
	}
	seq = add(t, w, 100*ms)
	w.Ack(104*ms, seq)
	if s := w.Stats(); s.SRTT != 4*time.Millisecond || s.RTO != 12*time.Millisecond {
		t.Fatalf("SRTT %v, RTO %v; want a sample that ends the backoff", s.SRTT, s.RTO)
	}
}

// TestTimeoutGrowsWithThePath sends a window to a peer that answers slower and
// slower, as one does at which the window queues: nothing is repeated.
func TestTimeoutGrowsWithThePath(t *testing.T) {
	w := newWindow(t, Config{InitialRTO: 5 * time.Millisecond, MinRTO: 2 * time.Millisecond})
	for range 256 {
		add(t, w, 0)
	}
	for i := range Time(256) {
		now := i * ms / 10
		w.Ack(now, uint32(1+i))
		if n := len(resent(t, w, now)); n != 0 {
			t.Fatalf("%d frames resent at %v, with SRTT %v and RTO %v", n, time.Duration(now), w.Stats().SRTT, w.Stats().RTO)
		}
	}
}

func TestDefaults(t *testing.T) {
	got, err := Config{}.withDefaults()
	want := Config{Size: 512, InitialRTO: 20 * time.Millisecond, MinRTO: 5 * time.Millisecond, MaxRTO: time.Second, Silence: 12 * time.Second}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	given := Config{Size: 1, InitialRTO: 2, MinRTO: 1, MaxRTO: 3, Silence: 4}
	if got, err := given.withDefaults(); err != nil || got != given {
		t.Errorf("%+v became %+v, %v", given, got, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		says string
	}{
		"not a power of two": {Config{Size: 48}, "window of 48 frames: must be a power of two up to 512"},
		"negative size":      {Config{Size: -8}, "window of -8 frames"},
		"more than filters":  {Config{Size: 1024}, "window of 1024 frames"},
		"negative timeout":   {Config{MinRTO: -1}, "from -1ns to 1s"},
		"reversed timeouts":  {Config{MinRTO: 2 * time.Second}, "from 2s to 1s"},
		"initial too small":  {Config{InitialRTO: time.Millisecond}, "initial timeout 1ms is not between 5ms and 1s"},
		"initial too large":  {Config{InitialRTO: 2 * time.Second}, "initial timeout 2s"},
		"negative silence":   {Config{Silence: -1}, "silence is negative"},
		"smallest size":      {Config{Size: math.MinInt}, "must be a power of two"},
	} {
		if _, err := NewWindow(c.cfg); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, c.says)
		}
	}
	for name, cfg := range map[string]Config{
		"a window of one":      {Size: 1},
		"the largest window":   {Size: wire.DefaultWindow},
		"initial is the least": {InitialRTO: 7 * time.Millisecond, MinRTO: 7 * time.Millisecond},
		"initial is the most":  {InitialRTO: time.Second},
		"one timeout":          {InitialRTO: time.Second, MinRTO: time.Second},
		"the shortest silence": {Silence: 1},
		"the shortest timeout": {MinRTO: 1},
	} {
		if _, err := NewWindow(cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := newWindow(t, Config{})
	n := 0
	for ; !w.Full(); n++ {
		add(t, w, 0)
	}
	if n != 512 {
		t.Errorf("default window of %d frames, want 512", n)
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	w := newWindow(t, Config{Silence: time.Hour})
	var now Time
	resends := 0
	if n := testing.AllocsPerRun(100, func() {
		w.Full()
		for _, ok := w.Add(now, Entry{}); ok; _, ok = w.Add(now, Entry{}) {
			w.Sent(now, 1)
		}
		now = now.Add(time.Second)
		for range 2 {
			if err := w.Check(now); err != nil {
				t.Fatal(err)
			}
			w.Resend(now, func(uint32, Entry) bool { resends++; return true })
			w.NextDeadline()
			w.Ack(now, w.NextSeq()-1)
			now = now.Add(time.Second)
		}
		for seq := w.Base(); seq != w.NextSeq(); seq++ {
			w.Ack(now, seq)
		}
	}); n != 0 || resends < 100*wire.DefaultWindow {
		t.Errorf("%v allocations a window, %d resends", n, resends)
	}
}

// BenchmarkAddAck is the life of a frame that is not lost, in a window that
// stays half full; the time advances by 1 µs a frame.
func BenchmarkAddAck(b *testing.B) {
	w := newWindow(b, Config{})
	var now Time
	for range 256 {
		add(b, w, now)
	}
	resend := func(uint32, Entry) bool { return true }
	b.ReportAllocs()
	for b.Loop() {
		now += 1000
		w.Add(now, Entry{Cookie: 1})
		w.Sent(now, 1)
		w.Ack(now, w.Base())
		w.Resend(now, resend)
	}
	if w.Outstanding() != 256 {
		b.Fatal("frames were lost")
	}
}

// BenchmarkRepair loses all frames of a window but the last.
func BenchmarkRepair(b *testing.B) {
	w := newWindow(b, Config{Silence: math.MaxInt64})
	var now Time
	n := 0
	resend := func(uint32, Entry) bool { n++; return true }
	b.ReportAllocs()
	for b.Loop() {
		for !w.Full() {
			add(b, w, now)
		}
		now = now.Add(time.Millisecond)
		w.Ack(now, w.NextSeq()-1)
		now = now.Add(time.Second)
		w.Resend(now, resend)
		for seq := w.Base(); seq != w.NextSeq(); seq++ {
			w.Ack(now, seq)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/frame")
}
