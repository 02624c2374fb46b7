// SPDX-License-Identifier: Apache-2.0

package agentproto

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Written messages are read again, also with texts at the limits.
func TestMessagesRoundTrip(t *testing.T) {
	hello := Hello{Oldest: 1, Newest: 1, Entries: 8, Dim: 3, BufferBytes: 1, Parties: 4, Job: strings.Repeat("j", 63), Client: strings.Repeat("c", 31), HotSet: [32]byte{1, 31: 2}}
	b, err := hello.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseHello(b); err != nil || got != hello {
		t.Errorf("%+v, %v", got, err)
	}
	same := Hello{Oldest: 1, Newest: 1, Entries: 8, BufferBytes: 1, Job: "clicks", Client: "clicks"}
	if b, err = same.Marshal(); err != nil {
		t.Fatal(err)
	}
	if got, err := ParseHello(b); err != nil || got != same {
		t.Errorf("job and client of one name: %+v, %v", got, err)
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
	refused := &RefusedError{Code: NoJob, Oldest: 1, Newest: 1, Text: strings.Repeat("ä", 300)} // is truncated
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

// A HELLO that breaks a rule is refused with its code; one at the limits is accepted.
func TestHelloIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b []byte)
		want   Code
		text   string
	}{
		"older versions too":         {change: func(b []byte) { b[4] = 0 }},
		"newer versions too":         {change: func(b []byte) { b[6] = 9 }},
		"newer versions only":        {func(b []byte) { b[4], b[6] = 2, 2 }, BadVersion, "versions 2 to 2, the agent version 1: upgrade the agent"},
		"older versions only":        {func(b []byte) { b[4], b[6] = 0, 0 }, BadVersion, "versions 0 to 0, the agent version 1: upgrade the client's library"},
		"a feature":                  {func(b []byte) { b[15] = 0x80 }, Features, "bits 0x8000000000000000"},
		"harvests":                   {change: func(b []byte) { b[8] = 1 }},
		"another feature, too":       {func(b []byte) { b[8] = 3 }, Features, "bits 0x2"},
		"an owner":                   {change: func(b []byte) { b[8], b[36] = 1, 1 }},
		"an owner without harvests":  {func(b []byte) { b[36] = 1 }, BadHello, "an owner needs feature 0x1"},
		"an owner of another kind":   {func(b []byte) { b[8], b[36] = 1, 2 }, BadHello, "owner is 2: it must be 0 or 1"},
		"the first reserved byte":    {func(b []byte) { b[40] = 1 }, BadHello, "bytes 40 to 63"},
		"the last reserved byte":     {func(b []byte) { b[63] = 1 }, BadHello, "bytes 40 to 63"},
		"another magic number":       {func(b []byte) { b[0]++ }, BadHello, ""},
		"a job without an end":       {func(b []byte) { fill(b[64:128]) }, BadHello, "a name is not a text"},
		"a client without an end":    {func(b []byte) { fill(b[128:160]) }, BadHello, "a name is not a text"},
		"bytes after the job":        {func(b []byte) { b[127] = 'x' }, BadHello, "a name is not a text"},
		"a client that is no text":   {func(b []byte) { b[128] = 0xff }, BadHello, "a name is not a text"},
		"the fewest entries":         {change: func(b []byte) { order.PutUint32(b[16:], 8) }},
		"the most entries":           {change: func(b []byte) { order.PutUint32(b[16:], 65536) }},
		"too few entries":            {func(b []byte) { order.PutUint32(b[16:], 4) }, BadHello, "4 entries: it must be a power of two from 8 to 65536"},
		"too many entries":           {func(b []byte) { order.PutUint32(b[16:], 131072) }, BadHello, "131072 entries"},
		"entries of no power of two": {func(b []byte) { order.PutUint32(b[16:], 24) }, BadHello, "24 entries"},
	} {
		b, err := (&Hello{Oldest: 1, Newest: 1, Job: "clicks"}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		c.change(b)
		h, err := ParseHello(b)
		if c.want == OK {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %+v, %v, want %v with %q", name, h, err, c.want, c.text)
		}
	}
	b, err := (&Hello{Oldest: 1, Newest: 1}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if h, err := ParseHello(b); err != nil || h.Entries != DefaultEntries || h.BufferBytes != DefaultBufferBytes {
		t.Errorf("what is left to the agent: %+v, %v", h, err)
	}
	for _, message := range [][]byte{nil, b[:3], b[:7], b[:HelloLen-1], append(b, 0)} {
		if _, err := ParseHello(message); !errors.Is(err, BadHello) {
			t.Errorf("%d bytes: %v", len(message), err)
		}
		if len(message) < 8 {
			continue
		}
		next := append([]byte(nil), message...) // whose HELLO has another length
		next[4], next[6] = 2, 2
		if _, err := ParseHello(next); !errors.Is(err, BadVersion) {
			t.Errorf("%d bytes of a newer version: %v", len(next), err)
		}
	}
}

func fill(b []byte) {
	for i := range b {
		b[i] = 'x'
	}
}

// Invalid answers are distinguished: of another program, and of another version.
func TestAnswerIsChecked(t *testing.T) {
	good := (&Welcome{Version: Version}).Marshal()
	with := func(b []byte, change func(b []byte)) []byte {
		b = append([]byte(nil), b...)
		change(b)
		return b
	}
	refused := (&RefusedError{Code: NoJob, Text: "no"}).Marshal()
	for name, c := range map[string]struct {
		answer []byte
		want   string
	}{
		"shorter than a code":       {good[:7], "an answer of 7 bytes is not an agent's"},
		"another magic number":      {with(good, func(b []byte) { b[0]++ }), "does a different program listen there?"},
		"a short welcome":           {good[:WelcomeLen-1], "code 0 and 255 bytes fits no version"},
		"a long welcome":            {append(good, 0), "code 0 and 257 bytes fits no version"},
		"a short refusal":           {refused[:RefusedLen-1], "code 4 and 511 bytes fits no version"},
		"a refusal for no reason":   {with(refused, func(b []byte) { b[4] = 0 }), "code 0 and 512 bytes fits no version"},
		"a refusal like a welcome":  {with(good, func(b []byte) { b[4] = 5 }), "code 5 and 256 bytes fits no version"},
		"a version that is not 1":   {with(good, func(b []byte) { b[8] = 2 }), "it chose version 2, this program speaks 1"},
		"nothing more than a magic": {good[:8], "code 0 and 8 bytes fits no version"},
	} {
		if w, err := ParseAnswer(c.answer); w != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, want %q", name, w, err, c.want)
		}
	}
}

// Texts fill their field except for the final zero, and are truncated between characters.
func TestTextsAreCut(t *testing.T) {
	for s, want := range map[string]string{"": "", "abc": "abc", "abcd": "abc", "abä": "ab", "aäb": "aä", "日本": "日", "日x": "日"} {
		b := []byte("....")
		if putText(b, s); string(b) != want+strings.Repeat("\x00", 4-len(want)) {
			t.Errorf("%q is written as %q, want %q", s, b, want)
		}
	}
}

// FuzzHello reads any message: an accepted one is in range, and equals the written one.
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

// FuzzEntry reads any entry: an accepted one is in the buffer area, and equals the written one.
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
		// Without 64-bit overflow: sizes are below 2^70, and floats can distinguish them.
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

// A LEARN is read as it was written; other messages are refused.
func TestLearn(t *testing.T) {
	for _, want := range []Learn{{Counters: 1}, {Counters: MaxCounters, Job: strings.Repeat("j", 63)}} {
		b, err := want.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseLearn(b); err != nil || got != want {
			t.Errorf("%+v is read as %+v, %v", want, got, err)
		}
		for _, at := range []int{0, 8, 63, 127} {
			bad := slices.Clone(b)
			bad[at] ^= 0x80
			if _, err := ParseLearn(bad); !errors.Is(err, BadHello) {
				t.Errorf("byte %d: %v", at, err)
			}
		}
		if _, err := ParseLearn(b[1:]); !errors.Is(err, BadHello) {
			t.Errorf("a byte less: %v", err)
		}
	}
	for _, counters := range []uint32{0, MaxCounters + 1} {
		b, err := (&Learn{Counters: counters}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseLearn(b); !errors.Is(err, BadHello) {
			t.Errorf("%d counters: %v", counters, err)
		}
	}
	if _, err := (&Learn{Job: strings.Repeat("j", 64)}).Marshal(); err == nil {
		t.Error("a name of 64 bytes is written")
	}
}
