// SPDX-License-Identifier: Apache-2.0

package access

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
		c := Caller{
			secured: true, names: []*url.URL{must(url.Parse(uri))},
			Remote: netip.MustParseAddrPort("192.0.2.9:5"), local: netip.MustParseAddrPort("192.0.2.1:7700"),
		}
		if err := c.NeedOperator(); (err == nil) != may {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

// A certificate without addresses is valid for no address, not for all.
func TestCertificateWithoutAddresses(t *testing.T) {
	if err := (Caller{secured: true}).NeedAddress(netip.MustParseAddr("192.0.2.7")); !contains(err, "address 192.0.2.7 is not in the certificate") {
		t.Errorf("%v", err)
	}
}

// A call without a network connection has no address.
func TestAddressOfNoConnection(t *testing.T) {
	if ap := addrPort(nil); ap != (netip.AddrPort{}) {
		t.Error(ap)
	}
}
