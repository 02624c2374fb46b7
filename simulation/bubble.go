// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"flag"
	"testing"
	"testing/synctest"
)

// Bubble calls a function in its own bubble of testing/synctest. Several may run at the same time.
type Bubble func(func())

// InTest returns the bubbles of a test.
func InTest(t *testing.T) Bubble {
	return func(f func()) { synctest.Test(t, func(*testing.T) { f() }) }
}

// Bubbles returns the bubbles of a program that is not a test. It may be called once.
//
// The runtime gives virtual time only to testing/synctest, which requires a test. So Bubbles starts
// a test, which does not end before the program.
func Bubbles() Bubble {
	testing.Init()
	_ = flag.CommandLine.Parse(nil) // package testing parses its own flags, which have their defaults
	started := make(chan *testing.T)
	tests := []testing.InternalTest{{Name: "simulation", F: func(t *testing.T) {
		started <- t
		select {}
	}}}
	go testing.Main(func(string, string) (bool, error) { return true, nil }, tests, nil, nil)
	return InTest(<-started)
}
