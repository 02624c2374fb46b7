// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"testing"

	"github.com/libra-ina/libra/internal/test/testlog"
)

// A group follows changes of its interface even if nothing reads them, for example while a program
// is attached: only the newest counts.
func TestGroupFollowsUnheard(t *testing.T) {
	log := &testlog.Log{}
	p := newHostPair(t)
	var g *Group
	if err := p.near.Do(func() (err error) {
		g, err = OpenAll("a", GroupConfig{Match: MatchUDP(7000), Log: log.Logger()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	changed := make(chan int, 1)
	stop, err := g.follow(changed)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ mtu, says string }{
		{"1000", "ip link set dev a mtu 1500"}, {"1500", "the MTU is large enough again"}, {"9000", "received packets of more than"}, {"1500", "have room again"},
	} {
		p.at(p.near, "ip link set dev a mtu "+c.mtu)
		log.Await(t, c.says)
	}
	stop()
	if index := <-changed; index != g.sockets[0].info.Load().Ifindex {
		t.Errorf("interface %d has changed, want %d", index, g.sockets[0].info.Load().Ifindex)
	}
}
