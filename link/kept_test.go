// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/link"
)

// A kept link is lent to one endpoint at a time, and gets back all buffers at the end of each.
func TestKeptLinkGetsItsBuffersBack(t *testing.T) {
	l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	kept, before := link.Keep(l), 0
	for life := range 3 {
		lent, err := kept.Lend()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kept.Lend(); !errors.Is(err, link.ErrConfig) {
			t.Errorf("a link that is lent is lent again: %v", err)
		}
		if lent.Local() != kept.Link().Local() {
			t.Errorf("its address is %v, want %v", lent.Local(), kept.Link().Local())
		}
		n := 0
		for b, ok := lent.Alloc(); ok; b, ok = lent.Alloc() {
			if n++; n%3 == 0 { // once more
				lent.Free(b)
				if b, ok := lent.Alloc(); !ok || len(lent.Payload(b)) == 0 {
					t.Fatal("a freed buffer is not free")
				}
			}
		}
		if life > 0 && n != before {
			t.Errorf("%d buffers are free, %d were", n, before)
		}
		before = n
		if err := errors.Join(lent.Close(), lent.Close()); err != nil {
			t.Error(err)
		}
		if _, ok := lent.Alloc(); ok {
			t.Error("a link that was given back has buffers")
		}
		lent.Free(0) // late, and no longer its own
	}
	if err := kept.Close(); err != nil {
		t.Error(err)
	}
}
