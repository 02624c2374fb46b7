// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// listen calls Check from deadline to deadline, and returns when and how it ends.
func listen(t *testing.T, w *Window, until Time) (Time, error) {
	t.Helper()
	for {
		now, ok := w.NextDeadline()
		if !ok {
			t.Fatal("no deadline")
		}
		now = min(now, until)
		if err := w.Check(now); err != nil || now == until {
			return now, err
		}
		resent(t, w, now)
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
	if _, err := listen(t, w, start+600*ms-1); err != nil {
		t.Fatalf("before the limit: %v", err)
	}
	now, err := listen(t, w, start+2000*ms)
	if now != start+600*ms {
		t.Errorf("given up at %v, want %v", now-start, 600*ms)
	}
	w.Resend(now, func(uint32, Entry) bool { return true })
	if next, any := w.NextDeadline(); !any || next <= now { // for a caller that goes on
		t.Errorf("the next deadline is at %v, %v after the limit", next, next.Sub(now))
	}
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
	if _, err := listen(t, w, start+1101*ms-1); err != nil {
		t.Errorf("peer answered a moment ago: %v", err)
	}
	if err := w.Check(start + 1101*ms); err == nil {
		t.Error("a peer that is silent again is not given up")
	}
	for seq := range w.Unacked() {
		w.Ack(start+2000*ms, seq)
	}
	if err := w.Check(start + 9000*ms); err != nil {
		t.Errorf("all is answered and yet: %v", err)
	}
}

// Each answer of a run to one frame is a sign of life, and none but the first an answer: the
// frame's copies may all have been needed. An answer to a frame that was never sent is no sign.
func TestAnswersInARun(t *testing.T) {
	w := newWindow(t, Config{Silence: 500 * time.Millisecond})
	asks := add(t, w, 0)
	other := add(t, w, 0)
	w.Resend(20*ms, func(uint32, Entry) bool { return true })
	if e, ok := w.AckOneOfMany(30*ms, asks); !ok || e.Cookie != uint64(asks) {
		t.Fatalf("the first answer: %v, %v", e, ok)
	}
	before := w.Stats()
	for at := 400 * ms; at <= 2000*ms; at += 400 * ms {
		if _, err := listen(t, w, at); err != nil {
			t.Fatalf("the answer before came less than the limit ago: %v", err)
		}
		if e, ok := w.AckOneOfMany(at, asks); ok {
			t.Fatalf("an answer to an answered frame gives %v", e)
		}
	}
	after := w.Stats()
	if after.Repeated != before.Repeated || after.Spurious != before.Spurious || after.Acked != before.Acked {
		t.Errorf("before the rest of the run %+v, after it %+v", before, after)
	}
	if _, ok := w.AckOneOfMany(2001*ms, other+1); ok || w.Stats().Unknown != 1 {
		t.Errorf("an answer to a frame that was not sent: %v, %+v", ok, w.Stats())
	}
	if now, err := listen(t, w, 3000*ms); err == nil || now != 2500*ms {
		t.Errorf("given up at %v, %v, want 500ms after the last answer", time.Duration(now), err)
	}
}

// TestOwnPauseIsNoSilence stops the caller for longer than the limit of silence.
// Only the time in which it listened counts.
func TestOwnPauseIsNoSilence(t *testing.T) {
	pause := 13_000 * ms
	w := newWindow(t, Config{Silence: 500 * time.Millisecond, MaxRTO: 20 * time.Millisecond})
	add(t, w, 0)
	if _, err := listen(t, w, 300*ms); err != nil {
		t.Fatal(err)
	}
	now := 300*ms + pause
	if err := w.Check(now); err != nil {
		t.Fatalf("after a pause of its own of %v: %v", time.Duration(pause), err)
	}
	expect(t, w, now, 1) // which asks again first
	end, err := listen(t, w, now+2000*ms)
	if err == nil || end < now+170*ms || end > now+200*ms {
		t.Errorf("given up %v after the pause, %v; 300ms of 500 had passed before it, and at most a timeout counts of the pause", time.Duration(end-now), err)
	}
	// An earlier time than before, of a clock that is not monotonic, counts nothing.
	w = newWindow(t, Config{Silence: time.Second})
	add(t, w, 100*ms)
	if err := w.Check(0); err != nil || w.heard.listened != 0 {
		t.Errorf("%v, %v", err, w.heard.listened)
	}
}

// TestIdleTimeIsNoSilence begins to ask after a long time without a question: the
// limit counts from the first question on.
func TestIdleTimeIsNoSilence(t *testing.T) {
	w := newWindow(t, Config{Silence: 500 * time.Millisecond})
	for round := range Time(3) {
		start := (1 + round) * 1e12
		seq := add(t, w, start)
		now, err := listen(t, w, start+2000*ms)
		var silent *SilentPeerError
		if !errors.As(err, &silent) || now != start+500*ms || silent.FirstSeq != seq {
			t.Errorf("round %d: given up after %v with %v, want 500ms", round, now-start, err)
		}
		w.Ack(now, seq)
	}
}

// TestAskedBeforeGivenUp has a peer answer the oldest frame when timeouts have doubled
// beyond the limit of silence. The other frame is asked for again before the peer is
// given up, however short the limit is.
func TestAskedBeforeGivenUp(t *testing.T) {
	for _, silence := range []time.Duration{40 * time.Millisecond, 150 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
		w := newWindow(t, Config{Silence: silence})
		add(t, w, 0)
		add(t, w, 0)
		var last Time // of the repetitions of frame 1 while the peer has not been given up
		for {
			now, _ := w.NextDeadline()
			if w.Check(now) != nil {
				break
			}
			if len(resent(t, w, now)) > 0 {
				last = now
			}
		}
		w = newWindow(t, Config{Silence: silence})
		add(t, w, 0)
		add(t, w, 0)
		for now := Time(0); now < last; {
			now, _ = w.NextDeadline()
			if err := w.Check(now); err != nil {
				t.Fatal(err)
			}
			resent(t, w, now)
		}
		w.Ack(last, 1) // by which frame 2 is the oldest
		asked := 0
		for now := last; w.Check(now) == nil; now, _ = w.NextDeadline() {
			asked += len(resent(t, w, now))
		}
		if asked < 2 {
			t.Errorf("with a limit of %v, the peer was asked %d times after its last answer", silence, asked)
		}
	}
}

// Silence counts from the last answer, or from the first frame that has none, whether the caller
// listens or not.
func TestSilenceOfAPeer(t *testing.T) {
	w, err := NewWindow(Config{})
	if err != nil {
		t.Fatal(err)
	}
	at := func(d time.Duration) Time { return Time(d) }
	if d := w.Silence(at(time.Hour)); d != 0 {
		t.Errorf("%v without a frame", d)
	}
	for i := range 2 {
		if _, ok := w.Add(at(time.Second), Entry{}); !ok {
			t.Fatal("no room")
		}
		w.Sent(at(time.Second), 1)
		if d := w.Silence(at(time.Duration(i+1) * time.Second)); d != time.Duration(i)*time.Second {
			t.Errorf("%v after frame %d", d, i+1)
		}
	}
	if _, ok := w.Ack(at(4*time.Second), 1); !ok {
		t.Fatal("no answer")
	}
	if d := w.Silence(at(6 * time.Second)); d != 2*time.Second {
		t.Errorf("%v after an answer", d)
	}
	if _, ok := w.Ack(at(6*time.Second), 2); !ok || w.Silence(at(9*time.Second)) != 0 {
		t.Error("silence although all is answered")
	}
}
