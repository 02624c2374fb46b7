// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"flag"
	"os"
	"testing"
	"time"
)

// eventLimit bounds the wait for an event that a test expects, on a machine that is busy with
// other programs, too.
const eventLimit = 2 * time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Geteuid() != 0 {
		// Examples have no Skip of their own; see needPrivileges.
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
