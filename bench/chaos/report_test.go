// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/report"
)

// Every count is summed.
func TestCountsAddUp(t *testing.T) {
	var one, sum Counts
	for v, i := reflect.ValueOf(&one).Elem(), 0; i < v.NumField(); i++ {
		if f := v.Field(i); f.CanUint() {
			f.SetUint(uint64(i + 1))
		} else {
			f.SetInt(int64(i + 1))
		}
	}
	sum.add(one)
	if sum != one {
		t.Errorf("%+v, want %+v", sum, one)
	}
	if sum.add(one); sum.Steps != 2*one.Steps || sum.CorruptCopies != 2*one.CorruptCopies {
		t.Errorf("%+v", sum)
	}
}

func TestReportSaysWhatHappened(t *testing.T) {
	r := &Report{Seed: 4, Lives: []LifeReport{{
		Life:     Life{Seed: 4, Workers: 2, Troubles: []Trouble{{Kind: Partition, Step: 31, On: Server, To: Worker(2), Lasts: 5e7}}},
		Happened: map[Kind]int{Partition: 1}, Skipped: 3, Counts: Counts{Fences: 17, Settled: 1234},
	}}}
	text := func() string {
		var b bytes.Buffer
		p := report.NewPrinter(&b)
		r.Print(p)
		p.Line(r.Verdict())
		return b.String()
	}
	for _, want := range []string{"Schedule of seed 4", "31", "partition of the server to worker 2 for 50ms", "17", "1,234",
		"seed 4: bit-identical to the reference\n"} {
		if got := text(); !strings.Contains(got, want) {
			t.Errorf("no %q:\n%s", want, got)
		}
	}
	r.Lives = append(r.Lives, LifeReport{Life: Life{Seed: 5}, Happened: map[Kind]int{Partition: 2}})
	if got := text(); strings.Contains(got, "Schedule") || !strings.Contains(got, "2 lives, seeds 4 to 5: all bit-identical") {
		t.Error(got)
	}
	if _, happened, skipped := r.Total(); happened[Partition] != 3 || skipped != 3 {
		t.Errorf("%v, %d", happened, skipped)
	}
	r.Failure = "worker 1 ended"
	if got := text(); !strings.HasSuffix(got, "seed 5: NOT as the reference: worker 1 ended\n") {
		t.Error(got)
	}
}
