// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// scripted has nothing to receive, then what comes within a look, then nothing after a time that is longer than one, and tells of sleeps.
type scripted struct {
	link.Link
	turns, waits int
	come         func(pkts []link.Packet) int
}

func (s *scripted) Receive(pkts []link.Packet) (int, error) {
	switch s.turns++; s.turns {
	case 1, 2:
		return 0, nil
	case 3:
		return s.come(pkts), nil
	case 4:
		time.Sleep(2 * DefaultLook)
		return 0, nil
	case 5:
		return 0, nil
	}
	return 0, net.ErrClosed
}

func (s *scripted) Reply([]link.Packet) error { return nil }

func (s *scripted) Wait(time.Duration) error {
	s.waits++
	return nil
}

// What comes ends the look of a server, and the next one begins when there is nothing again, however long that took.
func TestWorkEndsALookOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{come: func([]link.Packet) int { return 1 }}
		var l loop
		l.init(s, 0)
		if err := l.serve(func([]link.Packet) error { return nil }, nil); !errors.Is(err, net.ErrClosed) || s.waits != 0 {
			t.Errorf("%d sleeps, %v", s.waits, err)
		}
	})
}

// The same of a worker, which a frame that is unanswered has look.
func TestWorkEndsALookOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPausable(t, time.Hour)
		p.push(2)
		s := &scripted{Link: p.link}
		s.come = func(pkts []link.Packet) int {
			h, err := wire.ParseHeader(p.server.inbox[0].Payload)
			if err != nil {
				t.Fatal(err)
			}
			pkts[0] = link.Packet{Packet: wire.Packet{Src: p.server.local, Payload: wire.PutAck(make([]byte, wire.HeaderLen), h)}}
			return 1
		}
		p.link = s
		if err := p.main(); !errors.Is(err, net.ErrClosed) || s.waits != 0 || p.flows[flowCold].window.Outstanding() == 0 {
			t.Errorf("%d sleeps, %v", s.waits, err)
		}
	})
}
