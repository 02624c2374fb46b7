// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"testing"
)

// No life has a violation, whatever its seed.
func TestSeeds(t *testing.T) { liveSeeds(t, "seeds", *seeds, Run) }

// If nothing is lost, suspended peers cause few repetitions; that is checked at the end of each
// such life.
func TestWorkersRepeatLittle(t *testing.T) {
	var total Result
	for seed := uint64(1); seed <= 40; seed++ {
		r, err := Run(InTest(t), Options{Seed: seed, Kinds: Pause | Duplicate | Late})
		if err != nil {
			t.Error(err)
		}
		total.Add(r)
	}
	if total.Pauses == 0 || total.Traffic.Lost+total.Traffic.Reordered > 0 {
		t.Errorf("%+v", total)
	}
}

// The same seed gives the same life, step by step, on one processor and on several.
func TestSameSeedSameTrace(t *testing.T) { liveTwice(t, 1, 10, All, Run) }

// Different seeds give different lives.
func TestSeedsDiffer(t *testing.T) {
	digests := map[uint64]uint64{}
	for seed := uint64(1); seed <= 20; seed++ {
		r, err := Run(InTest(t), Options{Seed: seed, Kinds: All})
		if err != nil {
			t.Error(err)
		}
		if other, ok := digests[r.Digest]; ok {
			t.Errorf("seeds %d and %d give the same life", other, seed)
		}
		digests[r.Digest] = seed
	}
}

// Each kind of trouble occurs if it is enabled, and only then.
func TestKindsOfTrouble(t *testing.T) {
	counts := map[Kinds]func(Result) uint64{
		Loss:      func(r Result) uint64 { return r.Traffic.Lost },
		Duplicate: func(r Result) uint64 { return r.Traffic.Duplicated },
		Reorder:   func(r Result) uint64 { return r.Traffic.Reordered },
		Late:      func(r Result) uint64 { return r.Traffic.Late },
		Corrupt:   func(r Result) uint64 { return r.Traffic.Corrupted },
		Partition: func(r Result) uint64 { return r.Traffic.Cut },
		Pause:     func(r Result) uint64 { return uint64(r.Pauses) },
		Crash:     func(r Result) uint64 { return uint64(r.Crashes) },
		Evict:     func(r Result) uint64 { return uint64(r.Evictions) },
		Cancel:    func(r Result) uint64 { return uint64(r.Cancelled) },
		Hostile:   func(r Result) uint64 { return r.Traffic.Forged },
		Queue:     func(r Result) uint64 { return uint64(r.Short) },
	}
	for kind, count := range counts {
		var with, without Result
		live := func(seed uint64, kinds Kinds, total *Result) {
			r, err := Run(InTest(t), Options{Seed: seed, Kinds: kinds})
			if err != nil {
				t.Error(err)
			}
			total.Add(r)
		}
		live(1, ClusterAll&^kind, &without)
		live(2, ClusterAll&^kind, &without)
		for seed := uint64(1); seed <= 100 && count(with) == 0; seed++ {
			live(seed, kind, &with)
		}
		if count(with) == 0 {
			t.Errorf("%v alone does not happen: %+v", kind, with)
		}
		if count(without) != 0 {
			t.Errorf("%v happens although it is switched off: %+v", kind, without)
		}
		for other, count := range counts {
			if other != kind && count(with) != 0 {
				t.Errorf("%v happens where only %v is switched on", other, kind)
			}
		}
	}
}

func TestParseKinds(t *testing.T) {
	for text, want := range map[string]Kinds{"": ClusterAll, "reset,power": Reset | Power, "none": 0, "loss": Loss, "loss,crash": Loss | Crash, "silence": Silence} {
		if got, err := ParseKinds(text); err != nil || got != want {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	if _, err := ParseKinds("loss,rain"); err == nil {
		t.Error("rain is a kind of trouble")
	}
	for _, k := range []Kinds{0, Loss, Silence, Loss | Late | Queue} {
		if got, err := ParseKinds(k.String()); err != nil || got != k {
			t.Errorf("%v is read as %v, %v", k, got, err)
		}
	}
}

// An aggregator that takes pages for others, or loses a part of a bank, is found in lives of
// several pages.
func TestPageFaultsAreFound(t *testing.T) {
	for _, f := range []fault{ignoresPages, takesPrevious, takesBeyond, losesBlock} {
		t.Run(string(f), func(t *testing.T) {
			for seed := uint64(1); seed <= 1000; seed++ {
				o := Options{Seed: seed, Kinds: All | Hostile, fault: f}
				if o.drawPages() == 1 {
					continue
				}
				if _, err := Run(InTest(t), o); err != nil {
					t.Logf("found by seed %d: %v", seed, err)
					return
				}
			}
			t.Error("no life among 1000 seeds has shown it")
		})
	}
}

// A checker that finds nothing may be broken. Each of these faults in a life is found soon.
func TestFaultsAreFound(t *testing.T) {
	for _, f := range []fault{appliesTwice, acknowledgesOnly, sameEpoch, harvestsTwice, clearsEarly, spoilsRow, staleNumbers, addsRefused} {
		t.Run(string(f), func(t *testing.T) {
			for seed := uint64(1); seed <= 1000; seed++ {
				_, err := Run(InTest(t), Options{Seed: seed, Kinds: All, fault: f})
				if err != nil {
					t.Logf("found: %v", err)
					return
				}
			}
			t.Error("1000 lives have not shown it")
		})
	}
}
