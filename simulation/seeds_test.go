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
	seeds    = flag.Uint64("seeds", 60, "`number` of seeds for lives of workers")
	clusters = flag.Uint64("clusters", 12, "`number` of seeds for lives of clusters")
	only     = flag.String("only", "", "`kinds` of trouble, with commas between them; empty: all")
	stop     = flag.Bool("stop", false, "stop at the first violation")
	show     = flag.Bool("trace", false, "print the trace of each life")
)

// result is what lives of one kind return.
type result[R any] interface {
	*R
	Add(R)
}

// liveSeeds lives the lives of the seeds from first on, as many as the flag with the name
// says. None has a violation.
func liveSeeds[R any, P result[R]](t *testing.T, name string, seeds uint64, run func(Bubble, Options) (R, error)) {
	kinds, err := ParseKinds(*only)
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu    sync.Mutex
		total R
		ended atomic.Bool
	)
	t.Cleanup(func() { t.Logf("%d seeds from %d on, %v:\n%+v", seeds, *first, kinds, total) })
	test, shards := t.Name(), uint64(runtime.GOMAXPROCS(0))
	for shard := range shards {
		t.Run(fmt.Sprintf("shard %d of %d", shard+1, shards), func(t *testing.T) {
			t.Parallel()
			for n := shard; n < seeds && !ended.Load(); n += shards {
				var trace bytes.Buffer
				o := Options{Seed: *first + n, Kinds: kinds}
				if *show {
					o.Trace = &trace
				}
				r, err := run(InTest(t), o)
				if err != nil {
					t.Errorf("%v\nits trace: go test ./simulation -run '^%s$' -v -first %d -%s 1 -only '%s' -trace",
						err, test, o.Seed, name, *only)
					ended.Store(*stop)
				}
				mu.Lock()
				P(&total).Add(r)
				if *show {
					t.Logf("%s", &trace)
				}
				mu.Unlock()
			}
		})
	}
}

// liveTwice lives the lives of the seeds from first on, on several processors and on one: they are
// the same.
func liveTwice[R comparable](t *testing.T, first, seeds uint64, kinds Kinds, run func(Bubble, Options) (R, error)) {
	for seed := first; seed < first+seeds; seed++ {
		var traces [2]bytes.Buffer
		var results [2]R
		for i := range traces {
			before := 0
			if i == 1 {
				before = runtime.GOMAXPROCS(1)
			}
			var err error
			results[i], err = run(InTest(t), Options{Seed: seed, Kinds: kinds, Trace: &traces[i]})
			if before > 0 {
				runtime.GOMAXPROCS(before)
			}
			if err != nil {
				t.Error(err)
			}
		}
		a, b := traces[0].Bytes(), traces[1].Bytes()
		if !bytes.Equal(a, b) || results[0] != results[1] {
			t.Fatalf("seed %d: two lives differ, from here on:\n%s", seed, firstDifference(a, b))
		}
		if len(a) < 1000 {
			t.Errorf("seed %d: a trace of %d bytes", seed, len(a))
		}
	}
}
