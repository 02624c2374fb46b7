// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
)

// A P4 switch needs an address and ports. What is left out is named, as option and as field.
func TestP4NeedsItsSwitch(t *testing.T) {
	for name, p := range map[string]cluster.P4{"nothing": {}, "no address": {Ports: []uint32{1}}, "no port": {Runtime: "127.0.0.1:1"}} {
		_, err := openP4Plane(&cluster.Config{Switch: cluster.Switch{P4: p}}, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "(--p4-runtime, or switch.p4.runtime)") || !strings.Contains(err.Error(), "(--p4-ports, or switch.p4.ports)") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each tenth of the entries is told once, whatever the batches.
func TestTenths(t *testing.T) {
	for total, batch := range map[int]int{1000: 7, 25: 1, 10: 10} {
		var all lines
		progress, want := tenths(all.logger()), 0
		for done := 0; done < total; {
			before := done
			done = min(done+batch, total)
			if 10*done/total > 10*before/total {
				want++
				progress(done, total)
				if text := all.String(); !strings.HasSuffix(text, fmt.Sprintf("entries=%d of=%d\n", done, total)) {
					t.Errorf("after %d of %d: %s", done, total, text)
				}
				continue
			}
			progress(done, total)
		}
		if n := strings.Count(all.String(), "\n"); n != want {
			t.Errorf("%d of %d at a time: told %d times, want %d", batch, total, n, want)
		}
	}
}
