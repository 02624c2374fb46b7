// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/libra-ina/libra/internal/test/refuse"
)

// LoadHotSet closes files itself, whatever they contain, not the garbage collector.
func TestLoadHotSetKeepsNoDescriptor(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	good := encode(t, mustHotSet(t, 1, 7))
	for name, text := range map[string][]byte{"good": good, "truncated": good[:20], "trailing": append(good[:len(good):len(good)], 0)} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		before := refuse.CountDescriptors(t)
		if _, err := LoadHotSet(path); (err == nil) != (name == "good") {
			t.Errorf("%s: %v", name, err)
		}
		if now := refuse.CountDescriptors(t); now != before {
			t.Errorf("%s: %d descriptors are open, %d before", name, now, before)
		}
	}
}
