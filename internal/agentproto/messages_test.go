package agentproto

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// What is written is read again, at the limits of the texts too.
func TestMessagesRoundTrip(t *testing.T) {
	hello := Hello{Oldest: 1, Newest: 1, Entries: 8, Dim: 3, BufferBytes: 1, Parties: 4, Job: strings.Repeat("j", 63), Client: strings.Repeat("c", 31), HotSet: [32]byte{1, 31: 2}}
	b, err := hello.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseHello(b); err != nil || got != hello {
		t.Errorf("%+v, %v", got, err)
	}
	for _, long := range []Hello{{Job: strings.Repeat("j", 64)}, {Client: strings.Repeat("c", 32)}} {
		if _, err := long.Marshal(); err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("a name that is too long: %v", err)
		}
	}
	welcome := &Welcome{Version: Version, Job: 2, Exponent: -46, Layout: LayoutOf(8, 1), HotSet: [32]byte{1, 31: 2}}
	if got, err := ParseAnswer(welcome.Marshal()); err != nil || !reflect.DeepEqual(got, welcome) {
		t.Errorf("%+v, %v", got, err)
	}
	refused := &RefusedError{Code: NoJob, Oldest: 1, Newest: 1, Text: strings.Repeat("ä", 300)} // is cut
	_, err = ParseAnswer(refused.Marshal())
	var got *RefusedError
	if !errors.As(err, &got) || got.Code != NoJob || got.Text != strings.Repeat("ä", 247) {
		t.Errorf("%v", err)
	}
	next := *welcome
	next.Version = 2
	for _, answer := range [][]byte{nil, make([]byte, WelcomeLen), welcome.Marshal()[:200], refused.Marshal()[:256], next.Marshal()} {
		if w, err := ParseAnswer(answer); err == nil {
			t.Errorf("%d bytes are read as %+v", len(answer), w)
		}
	}
}

// FuzzHello reads any message: what is accepted is in range, and is what was written.
func FuzzHello(f *testing.F) {
	good, err := (&Hello{Oldest: 1, Newest: 1, Job: "clicks", Entries: 16, BufferBytes: 4096}).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHello(b)
		if err != nil {
			var code Code
			if !errors.As(err, &code) {
				t.Errorf("%v has no code", err)
			}
			return
		}
		if h.Entries < MinEntries || h.Entries > MaxEntries || h.Entries&(h.Entries-1) != 0 || len(h.Job) > 63 || len(h.Client) > 31 {
			t.Errorf("%+v is accepted", h)
		}
	})
}

// FuzzEntry reads any entry: what is accepted lies in the buffer area, and is what was written.
func FuzzEntry(f *testing.F) {
	for op := range uses {
		var b [EntryLen]byte
		(&Entry{Op: op}).Put(&b)
		f.Add(b[:], uint64(4096))
		(&Entry{Op: op, Dim: 3, N: 5, Keys: 8, Values: 64, Sums: 128, Step: 9}).Put(&b)
		f.Add(b[:], uint64(4096))
	}
	f.Fuzz(func(t *testing.T, b []byte, area uint64) {
		area = area % (1 << 40) &^ 4095
		if len(b) != EntryLen {
			return
		}
		e, err := ParseEntry((*[EntryLen]byte)(b), area)
		if err != nil {
			if !errors.Is(err, BadEntry) {
				t.Errorf("%v has no code", err)
			}
			return
		}
		var again [EntryLen]byte
		e.Put(&again)
		if again != [EntryLen]byte(b) {
			t.Errorf("%+v is not what was written", e)
		}
		// Without the limits of 64 bits: sizes are below 2^70, so floats tell them apart.
		rows := float64(e.N) * float64(e.Dim) * 4
		if !e.Op.HasRows() {
			rows = 0
		}
		if e.Op == Stats {
			rows = StatsLen
		}
		keys := float64(e.N) * 8
		if e.Batch != 0 {
			keys = 0
		}
		if float64(e.Keys)+keys > float64(area) || float64(e.Values)+rows > float64(area) || float64(e.Sums) > float64(area) || (e.Keys|e.Values|e.Sums)%8 != 0 {
			t.Errorf("%+v is accepted in an area of %d bytes", e, area)
		}
		if e.Op == PushSums && float64(e.Sums)+rows > float64(area) {
			t.Errorf("%+v is accepted in an area of %d bytes", e, area)
		}
	})
}
