// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"testing"

	"github.com/libra-ina/libra/aggregator/conformance"
)

func TestSwitchEqualsModel(t *testing.T) { compare(t, openWired(t, nil), jobs, *frames, verdicts...) }

func TestSwitchReplaysVectors(t *testing.T) {
	needBmv2(t)
	replay(t, func(t *testing.T) device { return openWired(t, nil) })
}

func TestSwitchReadmission(t *testing.T) { conformance.TestReadmission(t, openWired(t, nil)) }

// bmv2 runs the mutants like the interpreter.
func TestSwitchMutantsAreCaught(t *testing.T) {
	needBmv2(t)
	catch(t, func(t *testing.T, m mutant) device { return openWired(t, mutate(t, m)) })
}

func TestSwitchLUTEqualsModel(t *testing.T) { testLUT(t, openWired(t, nil)) }
