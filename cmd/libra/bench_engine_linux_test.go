// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// A measurement on an interface without a link ends at once, as a usage error.
func TestBenchEngineWithoutALink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	ns, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Veth(testbed.VethConfig{Names: [2]string{"near", "far"}}); err != nil {
		t.Fatal(err)
	}
	if err := ns.SetUp("near", false); err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		begin := time.Now()
		stdout, stderr, code := output(t, "bench", "engine", "--interface", "near", "--peer", "02:00:00:00:00:09", "--json")
		want := "--interface: near has no link (it is down): ip link set near up, and look at the cable"
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("code %d, %q, and not %q:\n%s", code, stdout, want, stderr)
		}
		if took := time.Since(begin); took > time.Minute { // of the two in which its processes may get ready
			t.Errorf("it took %v", took)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
