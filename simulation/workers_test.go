// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	first    = flag.Uint64("first", 1, "first `seed`")
	seeds    = flag.Uint64("seeds", 60, "`number` of seeds")
	clusters = flag.Uint64("clusters", 12, "`number` of seeds for lives of clusters")
	only     = flag.String("only", "", "`kinds` of trouble, with commas between them; empty: all")
	stop     = flag.Bool("stop", false, "stop at the first violation")
	show     = flag.Bool("trace", false, "print the trace of each life")
)

// No life has a violation, whatever its seed.
func TestSeeds(t *testing.T) {
	kinds, err := ParseKinds(*only)
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu    sync.Mutex
		total Result
		ended atomic.Bool
	)
	t.Cleanup(func() { t.Logf("%d seeds from %d on, %v:\n%+v", *seeds, *first, kinds, total) })
	shards := uint64(runtime.GOMAXPROCS(0))
	for shard := range shards {
		t.Run(fmt.Sprintf("shard %d of %d", shard+1, shards), func(t *testing.T) {
			t.Parallel()
			for n := shard; n < *seeds && !ended.Load(); n += shards {
				seed := *first + n
				var trace bytes.Buffer
				o := Options{Seed: seed, Kinds: kinds}
				if *show {
					o.Trace = &trace
				}
				r, err := Run(InTest(t), o)
				if err != nil {
					t.Errorf("%v\nits trace: go test ./simulation -run '^TestSeeds$' -v -first %d -seeds 1 -only '%s' -trace",
						err, seed, *only)
					ended.Store(*stop)
				}
				mu.Lock()
				total.Add(r)
				if *show {
					t.Logf("%s", &trace)
				}
				mu.Unlock()
			}
		})
	}
}

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
func TestSameSeedSameTrace(t *testing.T) {
	for seed := uint64(1); seed <= 10; seed++ {
		var traces [2]bytes.Buffer
		var results [2]Result
		for i := range traces {
			before := 0
			if i == 1 {
				before = runtime.GOMAXPROCS(1)
			}
			var err error
			results[i], err = Run(InTest(t), Options{Seed: seed, Kinds: All, Trace: &traces[i]})
			if before > 0 {
				runtime.GOMAXPROCS(before)
			}
			if err != nil {
				t.Error(err)
			}
		}
		a, b := traces[0].Bytes(), traces[1].Bytes()
		if !bytes.Equal(a, b) || results[0] != results[1] {
			t.Fatalf("seed %d: two lives differ:\n%s", seed, firstDifference(a, b))
		}
		if len(a) < 1000 {
			t.Errorf("seed %d: a trace of %d bytes", seed, len(a))
		}
	}
}

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
