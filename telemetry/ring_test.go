// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"math"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// TestRecordsComeBack writes records with every field at both ends of its range.
func TestRecordsComeBack(t *testing.T) {
	want := []Record{
		{},
		{Time: math.MaxInt64, Job: 0xffff, Worker: 0xffff, Server: NoServer, Epoch: 0xffff, Number: math.MaxUint32, Op: Push,
			Repeated: true, Stamped: true, Queue: math.MaxInt64, Process: math.MaxInt64, Total: math.MaxInt64,
			Request: math.MaxUint32, Response: math.MaxUint32},
		{Time: 1, Job: 2, Worker: 3, Server: 4, Epoch: 5, Number: 6, Op: Pull, Queue: 7, Process: 8, Total: 9, Request: 10, Response: 11},
		{Op: Cold, Repeated: true, Repeat: math.MaxInt64, Total: math.MaxInt64},
	}
	var r Ring
	for i := range want {
		r.Write(&want[i])
	}
	got, torn := r.Read(nil)
	if diff := cmp.Diff(want, got); diff != "" || torn != 0 {
		t.Errorf("%d torn; records (-written +read):\n%s", torn, diff)
	}
	if n := unsafe.Sizeof(slot{}); n != 64 {
		t.Errorf("a record takes %d bytes, want 64", n)
	}
}

// A full ring has the newest records.
func TestRingKeepsTheNewest(t *testing.T) {
	var r Ring
	const written = 2*ringSize + 100
	for i := range uint32(written) {
		r.Write(&Record{Number: i})
	}
	got, torn := r.Read(make([]Record, 0, ringSize))
	if len(got) != ringSize || torn != 0 {
		t.Fatalf("%d records, %d torn; want %d", len(got), torn, ringSize)
	}
	for _, rec := range got {
		if rec.Number < written-ringSize {
			t.Fatalf("record %d of %d is still there", rec.Number, written)
		}
	}
}

// marked returns a record of which every field follows from its number.
func marked(n uint32) Record {
	d := time.Duration(n)
	return Record{Time: d, Job: uint16(n), Worker: uint16(n + 1), Server: uint16(n + 2), Epoch: uint16(n + 3), Number: n, Op: Op(n % 5),
		Repeated: n%3 == 0, Queue: 2 * d, Process: 3 * d, Total: 5 * d, Request: n + 4, Response: n + 5}
}

// A reader never gets a record of which parts are those of another one, however fast it is
// replaced.
func TestReadersSeeWholeRecords(t *testing.T) {
	var (
		r    Ring
		wg   sync.WaitGroup
		stop = make(chan struct{})
	)
	const least = 3 * ringSize
	wg.Go(func() {
		for n := uint32(0); ; n++ {
			rec := marked(n)
			r.Write(&rec)
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	records := make([]Record, 0, ringSize)
	for newest := uint32(0); newest < least; {
		records, _ = r.Read(records[:0])
		for _, rec := range records {
			if want := marked(rec.Number); rec != want {
				t.Errorf("read %+v, want %+v", rec, want)
				newest = least
			}
			newest = max(newest, rec.Number)
		}
	}
	close(stop)
	wg.Wait()
}

// TestHalfWrittenRecordsAreLeftOut stops a writer after each word: nobody sees the record, neither
// as it was nor as it will be, and it is counted.
func TestHalfWrittenRecordsAreLeftOut(t *testing.T) {
	var other Ring
	next := marked(9)
	other.Write(&next)
	for words := range recordWords {
		var r Ring
		before := marked(7)
		r.Write(&before)
		r.slots[0][0].Store(0)
		for i := 1; i <= words && i < recordWords; i++ {
			r.slots[0][i].Store(other.slots[0][i].Load())
		}
		if got, torn := r.Read(nil); len(got) != 0 || torn != 1 {
			t.Errorf("after %d words: %d torn, and %+v", words, torn, got)
		}
	}
}
