// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"flag"
	"os"
	"testing"
)

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
