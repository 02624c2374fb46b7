// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/netip"
	"net/url"
	"testing"
)

// With TLS, operators and switches may remove any job, wherever they call from.
func TestWhoIsAnOperator(t *testing.T) {
	for uri, may := range map[string]bool{
		"libra://operator": true, "libra://switch": true, "libra://server/1": false, "libra://server/*": false, "libra://worker/*": false,
	} {
		c := caller{
			secured: true, names: []*url.URL{must(url.Parse(uri))},
			remote: netip.MustParseAddrPort("192.0.2.9:5"), local: netip.MustParseAddrPort("192.0.2.1:7700"),
		}
		if err := c.needOperator(); (err == nil) != may {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

// A certificate without addresses is valid for no address, not for all.
func TestCertificateWithoutAddresses(t *testing.T) {
	if err := (caller{secured: true}).needAddress(workerIP); !contains(err, "address 192.0.2.7 is not in the certificate") {
		t.Errorf("%v", err)
	}
}
