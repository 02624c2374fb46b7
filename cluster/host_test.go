// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
)

// TestHostsAreChecked looks at the server's and each worker's part of the file, and
// at the file's name in the error.
func TestHostsAreChecked(t *testing.T) {
	afxdp := strings.NewReplacer("backend: udp", "backend: afxdp",
		"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, interfaces: [eth1]",
		"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, interface: eth0",
		"address: 127.0.0.4", "address: 127.0.0.4, interface: eth0",
		"address: 127.0.0.5", "address: 127.0.0.5, interface: eth0").Replace(valid)
	if _, err := Read(write(t, strings.Replace(afxdp, "[eth1]", "[eth1, e23456789012345]", 1))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, says string }{
		{"7701, interface: eth0", "7701", "server.interface: required with the afxdp backend"},
		{"7701, interface: eth0", "7701, interface: eth0, queue: -1", "server.queue: -1 is negative"},
		{"127.0.0.5, interface: eth0", "127.0.0.5", "workers[1].interface: required with the afxdp backend"},
		{"127.0.0.4, interface: eth0", "127.0.0.4, interface: eth0, queue: -2", "workers[0].queue: -2 is negative"},
		{"[eth1]", "[eth1, eth2, eth1]", `switch.interfaces[2]: "eth1" is given twice`},
		{"[eth1]", `[eth1, ""]`, `switch.interfaces[1]: "" is not a valid interface name`},
		{"[eth1]", "[..]", `switch.interfaces[0]: ".." is not a valid interface name`},
		{"7701, interface: eth0", "7701, interface: a234567890123456", `server.interface: "a234567890123456" is not a valid interface name: 1 to 15 bytes`},
		{"127.0.0.5, interface: eth0", "127.0.0.5, interface: a/b", `workers[1].interface: "a/b" is not a valid interface name`},
		{"127.0.0.5, interface: eth0", "127.0.0.5, interface: 'a b'", `workers[1].interface: "a b" is not a valid interface name`},
	} {
		path := write(t, strings.Replace(afxdp, c.old, c.new, 1))
		_, err := Read(path)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "cluster configuration "+path+": ") {
			t.Errorf("error %v, want %q of %s", err, c.says, path)
		}
	}
}
