// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"fmt"

	"github.com/libra-ina/libra/p4/program"
)

// The tables of the program for v1model that the control plane fills when a job starts.
func Example() {
	compiled, err := program.Default()
	if err != nil {
		panic(err)
	}
	objects, err := compiled.Objects()
	if err != nil {
		panic(err)
	}
	for _, o := range objects {
		if o.Kind != program.KindTable {
			continue
		}
		for _, a := range o.Actions {
			if a.Name == "serve" || a.Name == "admit" {
				fmt.Printf("%s: %d entries with %d keys; %s has %d parameters\n",
					o.Name, o.Size, len(o.Keys), a.Name, len(a.Data))
			}
		}
	}
	// Output:
	// LibraIngress.check.admission.jobs: 256 entries with 1 keys; serve has 9 parameters
	// LibraIngress.check.admission.senders: 256 entries with 5 keys; admit has 3 parameters
}
