// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"maps"
	"math"
	"slices"
	"testing"
)

// Frames are drawn at three distances only, also where the numbers wrap around: no stretch of
// frames is without a drawn one, and none has many.
func TestDrawnNumbersAreThreeDistancesApart(t *testing.T) {
	d := NewDraw(DefaultSample)
	for _, start := range []uint32{1, 1 << 20, math.MaxUint32 - 100_000} {
		gaps := map[uint32]int{}
		last, any := uint32(0), false
		for i := range uint32(1_000_000) {
			if n := start + i; d.Draws(n) {
				if any {
					gaps[n-last]++
				}
				last, any = n, true
			}
		}
		if got := slices.Sorted(maps.Keys(gaps)); !slices.Equal(got, []uint32{34, 55, 89}) {
			t.Errorf("from %d on, the distances are %v, want 34, 55 and 89", start, got)
		}
	}
}

// A sender whose frames have a pattern, for example pushes of 24 frames each, has each of its
// positions measured as often as the others.
func TestDrawIsEvenInEveryPeriod(t *testing.T) {
	const numbers = 1 << 20
	d := NewDraw(DefaultSample)
	for period := uint32(1); period <= 32; period++ {
		drawn := make([]int, period)
		for n := range uint32(numbers) {
			if d.Draws(n) {
				drawn[n%period]++
			}
		}
		want := float64(numbers) / DefaultSample / float64(period)
		for at, n := range drawn {
			if off := float64(n)/want - 1; math.Abs(off) > 0.1 {
				t.Errorf("of period %d, position %d is drawn %d times, %.1f %% off", period, at, n, 100*off)
			}
		}
	}
}

func TestShareOfDrawnNumbers(t *testing.T) {
	const numbers = 1 << 20
	for sample := 1; sample <= maxSample; sample *= 2 {
		if err := CheckSample(sample); err != nil {
			t.Fatal(err)
		}
		d, drawn := NewDraw(sample), 0
		for n := range uint32(numbers) {
			if d.Draws(n) {
				drawn++
			}
		}
		if want := numbers / sample; math.Abs(float64(drawn-want)) > max(2, 0.01*float64(want)) && sample > 1 || sample == 1 && drawn != want {
			t.Errorf("sample %d: %d of %d numbers are drawn, want about %d", sample, drawn, numbers, want)
		}
	}
	for _, d := range []Draw{{}, NewDraw(0)} {
		for n := range uint32(1000) {
			if d.Draws(n) {
				t.Fatalf("number %d is drawn of none", n)
			}
		}
	}
}

func TestOnlyPowersOfTwoAreSamples(t *testing.T) {
	for _, sample := range []int{-64, -1, 3, 63, 65, 100, 2 * maxSample} {
		if CheckSample(sample) == nil {
			t.Errorf("%d is accepted", sample)
		}
	}
	if err := CheckSample(0); err != nil {
		t.Error(err)
	}
}
