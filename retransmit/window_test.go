package retransmit

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// add adds a frame whose cookie is its number.
func add(t testing.TB, w *Window, now Time) uint32 {
	t.Helper()
	seq, ok := w.Add(now, Entry{Cookie: uint64(w.NextSeq())})
	if !ok {
		t.Fatal("window is full")
	}
	return seq
}

// resent returns the frames that are due.
func resent(t testing.TB, w *Window, now Time) []uint32 {
	t.Helper()
	var seqs []uint32
	err := w.Expired(now, func(seq uint32, e Entry) bool {
		if e.Cookie != uint64(seq) {
			t.Fatalf("frame %d is resent with the entry of %d", seq, e.Cookie)
		}
		seqs = append(seqs, seq)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return seqs
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
	want := Entry{Cookie: 1 << 40, Len: 1414, Ticket: 9}
	w.Add(0, want)
	w.Add(0, Entry{})
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
		t.Error("a frame that was never sent is acknowledged")
	}
	if _, ok := w.Refuse(ms, 2); !ok || w.Outstanding() != 0 {
		t.Errorf("refused: %v, %d outstanding; want an empty window", ok, w.Outstanding())
	}
	if diff := cmp.Diff(Stats{
		Sent: 2, Acked: 1, Refused: 1, Repeated: 2, Unknown: 1,
		SRTT: time.Millisecond, RTO: 6 * time.Millisecond,
	}, w.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

// TestTimeoutFollowsRFC6298 computes RFC 6298 §2 by hand.
func TestTimeoutFollowsRFC6298(t *testing.T) {
	e := estimator{rto: time.Second, min: 2 * time.Millisecond, max: 10 * time.Second}
	for _, c := range []struct{ rtt, srtt, rttvar, rto time.Duration }{
		{80 * time.Millisecond, 80 * time.Millisecond, 40 * time.Millisecond, 240 * time.Millisecond},
		{160 * time.Millisecond, 90 * time.Millisecond, 50 * time.Millisecond, 290 * time.Millisecond},
		{10 * time.Millisecond, 80 * time.Millisecond, 57500 * time.Microsecond, 310 * time.Millisecond},
	} {
		e.sample(c.rtt)
		if e.srtt != c.srtt || e.rttvar != c.rttvar || e.rto != c.rto {
			t.Fatalf("after %v: SRTT %v, RTTVAR %v, RTO %v; want %v, %v, %v", c.rtt, e.srtt, e.rttvar, e.rto, c.srtt, c.rttvar, c.rto)
		}
	}
	for range 100 {
		e.sample(10 * time.Microsecond)
	}
	if e.rto != e.srtt+e.min {
		t.Errorf("RTO %v on a fast path, want the least, %v, above the round trip of %v", e.rto, e.min, e.srtt)
	}
	for range 100 {
		e.backoff()
	}
	if e.rto != e.max {
		t.Errorf("RTO %v after many backoffs, want the largest, %v", e.rto, e.max)
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

func TestBurstOfLossesBacksOffOnce(t *testing.T) {
	w := newWindow(t, Config{})
	for i := range Time(100) {
		add(t, w, i*ms/100)
	}
	if n := len(resent(t, w, 25*ms)); n != 100 {
		t.Fatalf("%d frames resent, want 100", n)
	}
	if rto := w.Stats().RTO; rto != 40*time.Millisecond {
		t.Fatalf("RTO %v after one burst, want 40ms", rto)
	}
	if n := len(resent(t, w, 64*ms)); n != 0 {
		t.Fatalf("%d frames resent before their doubled timeout", n)
	}
	if n := len(resent(t, w, 66*ms)); n != 100 {
		t.Fatalf("%d frames resent after their doubled timeout, want 100", n)
	}
	if rto := w.Stats().RTO; rto != 80*time.Millisecond {
		t.Fatalf("RTO %v after the second burst, want 80ms", rto)
	}
}

// TestStubbornFrameBacksOff loses one frame again and again while the others
// bring samples.
func TestStubbornFrameBacksOff(t *testing.T) {
	w := newWindow(t, Config{MaxRTO: 50 * time.Millisecond})
	add(t, w, 0)
	var at []time.Duration
	for now := Time(0); now < 400*ms; now += ms {
		if len(resent(t, w, now)) > 0 {
			at = append(at, time.Duration(now))
		}
		if !w.Full() {
			w.Ack(now+ms/10, add(t, w, now))
		}
	}
	// The first timeout was 20 ms, so the second is 40 and the third would be 80.
	want := []time.Duration{40e6, 50e6, 50e6, 50e6, 50e6, 50e6, 50e6}
	if len(at) != len(want)+1 {
		t.Fatalf("retransmitted at %v, want %d times", at, len(want)+1)
	}
	for i, gap := range want {
		if d := at[i+1] - at[i] - gap; d < 0 || d > 2*time.Millisecond {
			t.Errorf("%v between retransmissions %d and %d, want %v", at[i+1]-at[i], i, i+1, gap)
		}
	}
}

func TestFullRingLeavesFramesDue(t *testing.T) {
	w := newWindow(t, Config{})
	for range 3 {
		add(t, w, 0)
	}
	calls := 0
	full := func(uint32, Entry) bool { calls++; return calls < 2 }
	if err := w.Expired(21*ms, full); err != nil || calls != 2 {
		t.Fatalf("%d frames offered, %v; want 2", calls, err)
	}
	if next, ok := w.NextDeadline(); !ok || next > 21*ms {
		t.Fatalf("next deadline %v, %v; two frames are due now", next, ok)
	}
	w.Ack(21*ms, 1) // repeated, so no sample that would put the others off
	if diff := cmp.Diff([]uint32{2, 3}, resent(t, w, 21*ms)); diff != "" {
		t.Fatalf("resent afterwards (-want +got):\n%s", diff)
	}
	if s := w.Stats(); s.Retransmitted != 3 {
		t.Fatalf("%d retransmissions counted, want 3", s.Retransmitted)
	}
}

// TestNextDeadlineLeadsToEveryRetransmission sleeps from deadline to deadline.
func TestNextDeadlineLeadsToEveryRetransmission(t *testing.T) {
	w := newWindow(t, Config{Silence: time.Hour})
	if _, ok := w.NextDeadline(); ok {
		t.Fatal("an empty window has a deadline")
	}
	add(t, w, 5*ms)
	var at []time.Duration
	wakeups := 0
	for len(at) < 4 {
		now, ok := w.NextDeadline()
		if !ok {
			t.Fatal("no deadline with a frame outstanding")
		}
		wakeups++
		if len(resent(t, w, now)) > 0 {
			at = append(at, time.Duration(now))
		}
	}
	for i, want := range []time.Duration{25e6, 65e6, 145e6, 305e6} {
		if late := at[i] - want; late < 0 || late > time.Duration(i+1)*Tick {
			t.Errorf("retransmission %d at %v, want %v", i, at[i], want)
		}
	}
	if wakeups > 4*wheelLevels {
		t.Errorf("%d wake-ups for 4 retransmissions", wakeups)
	}
}

func TestSilentPeer(t *testing.T) {
	w := newWindow(t, Config{Silence: 500 * time.Millisecond})
	if err := w.Check(1e12); err != nil {
		t.Fatalf("nothing was asked and yet: %v", err)
	}
	start := Time(2e12) // a long idle time is no silence
	for range 5 {
		add(t, w, start)
	}
	w.Ack(start+100*ms, 1)
	w.Ack(start+100*ms, 3)
	if err := w.Expired(start+599*ms, func(uint32, Entry) bool { return true }); err != nil {
		t.Fatalf("before the limit: %v", err)
	}
	if next, _ := w.NextDeadline(); next > start+600*ms {
		t.Errorf("next deadline %v, after the limit of silence", next)
	}
	err := w.Expired(start+600*ms, func(seq uint32, _ Entry) bool {
		t.Errorf("frame %d is resent to a silent peer", seq)
		return true
	})
	want := &SilentPeerError{Silent: 500 * time.Millisecond, Acked: 2, Unacked: 3, FirstSeq: 2, LastSeq: 5}
	var got *SilentPeerError
	if !errors.As(err, &got) {
		t.Fatalf("error %v, want a SilentPeerError", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, part := range []string{"500ms", "2 frames acknowledged", "3 not", "2 to 5"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("message %q lacks %q", err, part)
		}
	}
	var seqs []uint32
	for seq := range w.Unacked() {
		seqs = append(seqs, seq)
	}
	if diff := cmp.Diff([]uint32{2, 4, 5}, seqs); diff != "" {
		t.Errorf("unacknowledged (-want +got):\n%s", diff)
	}
	w.Ack(start+601*ms, 1) // a repetition, but a sign of life
	if err := w.Check(start + 1100*ms); err != nil {
		t.Errorf("peer answered a moment ago: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]Config{
		"not a power of two": {Size: 48},
		"negative size":      {Size: -8},
		"more than filters":  {Size: 1024},
		"negative timeout":   {MinRTO: -1},
		"reversed timeouts":  {MinRTO: 2 * time.Second},
		"initial too small":  {InitialRTO: time.Millisecond},
		"initial too large":  {InitialRTO: 2 * time.Second},
		"negative silence":   {Silence: -1},
		"smallest size":      {Size: math.MinInt},
	} {
		if _, err := NewWindow(cfg); err == nil {
			t.Errorf("%s: %+v is accepted", name, cfg)
		}
	}
	if w := newWindow(t, Config{}); len(w.frames) != 512 {
		t.Errorf("default window of %d frames, want 512", len(w.frames))
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	w := newWindow(t, Config{Silence: time.Hour})
	var now Time
	resends := 0
	if n := testing.AllocsPerRun(100, func() {
		for !w.Full() {
			w.Add(now, Entry{})
		}
		now = now.Add(time.Second)
		if err := w.Expired(now, func(uint32, Entry) bool { resends++; return true }); err != nil {
			t.Fatal(err)
		}
		w.NextDeadline()
		for seq := w.Base(); seq != w.NextSeq(); seq++ {
			w.Ack(now, seq)
		}
	}); n != 0 || resends == 0 {
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
		w.Ack(now, w.Base())
		if err := w.Expired(now, resend); err != nil {
			b.Fatal(err)
		}
	}
	if w.Outstanding() != 256 {
		b.Fatal("frames were lost")
	}
}

// BenchmarkExpire retransmits a full window.
func BenchmarkExpire(b *testing.B) {
	w := newWindow(b, Config{Silence: math.MaxInt64})
	for !w.Full() {
		add(b, w, 0)
	}
	var now Time
	n := 0
	resend := func(uint32, Entry) bool { n++; return true }
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(2 * time.Second)
		if err := w.Expired(now, resend); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/frame")
}
