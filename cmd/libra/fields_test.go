// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/libra-ina/libra/train/settings"
)

// ownMeaning are the flags that have the name of a field of training and mean something else.
var ownMeaning = []string{
	"libra bench aggregator --harvest", // of a benchmark without training
	"libra bench push --harvest",       // the same
	"libra bench tenants --harvest",    // the same
	"libra bench schedule --seed",      // of placements, paths and rates
	"libra bench glm --epochs",         // over the rows that are trained
	"libra bench soak --seed",          // of the order of events
	"libra chaos --seed",               // of the troubles, too
	"libra codec study --batch",        // images of a worker's step
	"libra codec study --epochs",       // of each training
	"libra glm --epochs",               // without checkpoints
	"libra glm --learning-rate",        // of scaled features, without an optimiser
	"libra glm --seed",                 // weights begin with zeros
	"libra hotset build --seed",        // of the sample of rows
	"libra hotset study --seed",
	"libra lut study --seed",
	"libra plan --batch", // rows of the hot set's sample
	"libra plan --seed",  // of the rounding
	"libra run --seed",   // the order of rows is the programs' own
	"libra simulate --seed",
}

// A flag that sets a field of training says what package settings says, and has its default or one
// that the help names.
func TestFlagsOfFieldsHaveOneHome(t *testing.T) {
	exceptions := slices.Clone(ownMeaning)
	found := map[string]bool{}
	for path, c := range commands() {
		for _, home := range settings.All() {
			f := c.LocalFlags().Lookup(home.Flag())
			if f == nil {
				continue
			}
			name := path + " --" + f.Name
			if i := slices.Index(exceptions, name); i >= 0 {
				exceptions = slices.Delete(exceptions, i, i+1)
				continue
			}
			found[f.Name] = true
			_, usage := pflag.UnquoteUsage(f)
			if !strings.HasPrefix(usage, home.Help("")) {
				t.Errorf("%s: %q, package settings says %q", name, usage, home.Help(""))
			}
			_, told := cutDefault(usage)
			switch f.DefValue {
			case home.Usual():
			case "", "0", "0s", "false": // the field's default, or what the help says
				if told == "" && home.Usual() != f.DefValue {
					t.Errorf("%s: the help has no default, package settings has %s", name, home.Usual())
				}
			default:
				if name != "libra demo --seed" {
					t.Errorf("%s: the default is %s, in package settings %s", name, f.DefValue, home.Usual())
				}
			}
		}
	}
	if len(exceptions) > 0 {
		t.Errorf("%q: no such flags", exceptions)
	}
	for _, home := range settings.All() {
		if !found[home.Flag()] && !slices.Contains([]string{"model.l2"}, home.Name()) {
			t.Errorf("no command has --%s", home.Flag())
		}
	}
}
