// SPDX-License-Identifier: Apache-2.0

package agentproto

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// fieldsOf sets one field of an entry.
var fieldsOf = map[string]func(e *Entry, to uint64){
	"batch":  func(e *Entry, to uint64) { e.Batch = to },
	"keys":   func(e *Entry, to uint64) { e.Keys = to },
	"values": func(e *Entry, to uint64) { e.Values = to },
	"sums":   func(e *Entry, to uint64) { e.Sums = to },
	"n":      func(e *Entry, to uint64) { e.N = uint32(to) },
	"dim":    func(e *Entry, to uint64) { e.Dim = uint32(to) },
	"step":   func(e *Entry, to uint64) { e.Step = to },
}

// area is the size of the buffer area in tests.
const area = 4096

// parse reads an entry as the agent does, and compares it with the written one.
func parse(t *testing.T, e Entry) error {
	t.Helper()
	var b [EntryLen]byte
	e.Put(&b)
	got, err := ParseEntry(&b, area)
	if got != e {
		t.Errorf("%+v is read as %+v", e, got)
	}
	if err != nil && !errors.Is(err, BadEntry) {
		t.Errorf("%+v: %v has no code", e, err)
	}
	return err
}

// Each operation has its fields; the others, and the reserved bytes, are zero.
func TestEntriesHaveTheirFields(t *testing.T) {
	for op, has := range map[Op]string{
		Push: "dim batch keys values n", Pull: "dim batch keys values n", PushSums: "dim batch keys values sums n",
		Flush: "", Barrier: "step", Prepare: "keys n", Release: "batch", Stats: "values", Reduce: "dim keys values n step", Sums: "dim keys values n step",
		Harvest: "dim keys values n",
	} {
		for field, set := range fieldsOf {
			e := Entry{Op: op, Tag: 1 << 63}
			set(&e, 8)
			err := parse(t, e)
			if strings.Contains(" "+has+" ", " "+field+" ") {
				if err != nil {
					t.Errorf("operation %d with %s: %v", op, field, err)
				}
			} else if want := fmt.Sprintf("operation %d, %s 8", op, field); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("operation %d with %s: %v, want %q", op, field, err, want)
			}
		}
		if err := parse(t, Entry{Op: op, Batch: 7, Keys: 8}); err == nil {
			t.Errorf("operation %d with keys and a batch is accepted", op)
		}
		for at := range EntryLen {
			if at == 1 || at == 2 || at == 3 || at >= 52 && at < 56 {
				var b [EntryLen]byte
				(&Entry{Op: op}).Put(&b)
				b[at] = 1
				if _, err := ParseEntry(&b, area); err == nil || !strings.Contains(err.Error(), "reserved bytes are not zero") {
					t.Errorf("operation %d with byte %d: %v", op, at, err)
				}
			}
		}
		if rows := strings.Contains(has, "dim"); op.HasRows() != rows {
			t.Errorf("operation %d has rows: %v", op, op.HasRows())
		}
	}
	for _, op := range []Op{0, 12, 255} {
		if err := parse(t, Entry{Op: op}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("unknown operation %d", op)) {
			t.Errorf("operation %d: %v", op, err)
		}
	}
}

// Arrays of an entry must be in the buffer area, to the last byte, and at a multiple of 8.
func TestEntriesStayInTheirArea(t *testing.T) {
	for _, c := range []struct {
		e    Entry
		want string // the refused field
	}{
		{Entry{Op: Push, N: 64, Keys: area - 512}, ""},
		{Entry{Op: Push, N: 64, Keys: area - 504}, "keys 3592"},
		{Entry{Op: Push, N: 64, Keys: 4}, "keys 4"},
		{Entry{Op: Push, Keys: area}, ""},
		{Entry{Op: Push, Keys: area + 8}, "keys 4104"},
		{Entry{Op: Push, N: 513}, "keys 0"},
		{Entry{Op: Push, N: 1 << 31, Batch: 1}, ""}, // the keys are in a batch
		{Entry{Op: Push, N: 16, Dim: 4, Values: area - 256}, ""},
		{Entry{Op: Push, N: 16, Dim: 4, Values: area - 248}, "values 3848"},
		{Entry{Op: Push, N: 16, Dim: 4, Values: 12}, "values 12"},
		{Entry{Op: Push, N: 64, Dim: 16, Batch: 1}, ""},
		{Entry{Op: Push, N: 64, Dim: 17, Batch: 1}, "n 64"},
		{Entry{Op: Push, N: 1<<32 - 1, Dim: 1<<32 - 1, Batch: 1}, "n 4294967295"},
		{Entry{Op: Pull, N: 16, Dim: 4, Values: area - 256}, ""},
		{Entry{Op: Pull, N: 16, Dim: 4, Values: area - 248}, "values 3848"},
		{Entry{Op: PushSums, N: 16, Dim: 4, Sums: area - 256}, ""},
		{Entry{Op: PushSums, N: 16, Dim: 4, Sums: area - 248}, "sums 3848"},
		{Entry{Op: PushSums, N: 16, Dim: 4, Sums: 4}, "sums 4"},
		{Entry{Op: Prepare, N: 512}, ""},
		{Entry{Op: Prepare, N: 513}, "keys 0"},
		{Entry{Op: Harvest, N: 16, Dim: 4, Keys: area - 128, Values: area - 256, Step: Now}, ""},
		{Entry{Op: Harvest, N: 16, Dim: 4, Keys: area - 120}, "keys 3976"},
		{Entry{Op: Harvest, N: 16, Dim: 4, Values: area - 248}, "values 3848"},
		{Entry{Op: Harvest, Step: 2}, "step 2"},
		{Entry{Op: Stats, Values: area - StatsLen}, ""},
		{Entry{Op: Stats, Values: area - StatsLen + 8}, "values 3976"},
	} {
		err := parse(t, c.e)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), fmt.Sprintf("operation %d, %s", c.e.Op, c.want)) {
			t.Errorf("%+v: %v, want %q", c.e, err, c.want)
		}
	}
}

// Each code has a text, and an unknown number gets one, too.
func TestCodesHaveTexts(t *testing.T) {
	if got := Code(1000).Error(); got != "a code that this version does not know (1000): update it" {
		t.Errorf("an unknown code is %q", got)
	}
}
