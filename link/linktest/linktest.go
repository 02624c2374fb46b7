// SPDX-License-Identifier: Apache-2.0

// Package linktest tests implementations of [link.Link]. The links of package link pass it; run it
// on your own:
//
//	func TestLink(t *testing.T) {
//		linktest.Suite{Open: func(t *testing.T) (a, b link.Link) {
//			network := mylink.NewNetwork()
//			return network.Link(t, 1), network.Link(t, 2)
//		}}.Run(t)
//	}
//
// Like endpoints, the tests retransmit unanswered frames and ignore duplicates, so a link that
// loses, duplicates and reorders passes as long as it otherwise keeps the contract of [link.Link].
//
// # Units, errors, ownership, goroutines
//
// Times are bounds: a test that lasts half a minute has failed. Errors are failures of the
// subtests, which are named after the part of the contract that is broken. The suite owns the links
// that Open returns, and closes them; one goroutine uses a link, and another one wakes it.
package linktest

import (
	"context"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
)

// patience bounds each test.
const patience = 30 * time.Second

// Suite tests one kind of link.
type Suite struct {
	// Open returns two new links that reach each other. It is called once for each test, after the
	// links of the previous test are closed, and fails the test itself if it cannot open them. The
	// suite closes the links.
	Open func(t *testing.T) (a, b link.Link)
	// Allocates is set for a link that may allocate memory when it moves payloads.
	Allocates bool
}

// Run runs the tests as subtests of t, one after the other.
func (s Suite) Run(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*pair)
	}{
		{"Addresses", addresses},
		{"Path", paths},
		{"Sizes", sizes},
		{"Repetitions", repetitions},
		{"Windows", windows},
		{"Buffers", buffers},
		{"FreeWhileSending", freeWhileSending},
		{"SameBufferTwice", sameBufferTwice},
		{"ShortBatches", shortBatches},
		{"ReceivedMemory", receivedMemory},
		{"Reply", replies},
		{"Endurance", endurance},
		{"WaitForLimit", waitForLimit},
		{"WaitForPayload", waitForPayload},
		{"Wake", wakes},
		{"BothWays", bothWays},
		{"Stats", stats},
		{"Close", closes},
		{"Allocations", allocations},
	} {
		if test.name == "Allocations" && s.Allocates {
			continue
		}
		start := time.Now()
		if ok := t.Run(test.name, func(t *testing.T) { test.run(s.open(t)) }); !ok && time.Since(start) > patience {
			t.Fatal("the other tests would most probably hang, too")
		}
	}
}

func (s Suite) open(t *testing.T) *pair {
	t.Helper()
	a, b := s.Open(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	p := &pair{T: t, ctx: ctx, a: a, b: b, known: map[link.Link]map[uint32]message{a: {}, b: {}}}
	t.Cleanup(func() {
		cancel()
		for _, l := range []link.Link{a, b} {
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
	p.ab, p.ba = p.path(a, b), p.path(b, a)
	return p
}
