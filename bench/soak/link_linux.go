package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/testbed"
)

// Names of a link's interfaces, each in a namespace of its own.
const (
	nearName = "near"
	farName  = "far"
)

// link is a veth pair with clients at the near end and an opposite at the far one.
type link struct {
	name      string
	queues    int
	stamps    bool // the near end's program notes when packets arrive
	near, far *testbed.Namespace
	end       *end // near
	clients   []*client
	opposite  opposite

	past map[string]uint64 // counters of interfaces that are gone
	ran  chan error        // the clients' end
}

// newLink makes the namespaces and the cable.
func newLink(name string, queues int, stamps bool) (l *link, err error) {
	l = &link{name: name, queues: queues, stamps: stamps, past: map[string]uint64{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.near, err = testbed.NewNamespace(); err != nil {
		return nil, err
	}
	if l.far, err = testbed.NewNamespace(); err != nil {
		return nil, err
	}
	return l, l.plug()
}

// plug makes the cable.
func (l *link) plug() error {
	return l.near.Veth(testbed.VethConfig{Names: [2]string{nearName, farName}, Peer: l.far, Queues: l.queues, MTU: plainMTU})
}

// unplug removes the cable, after adding its counters to those of the past.
func (l *link) unplug() error {
	drops, err := l.drops()
	if err != nil {
		return err
	}
	l.past = drops
	return l.near.Delete(nearName)
}

// start opens the clients and the opposite and runs the clients, paused. A client
// that fails calls stop.
func (l *link) start(ctx context.Context, stop context.CancelCauseFunc) error {
	if err := l.opposite.start(ctx); err != nil {
		return err
	}
	var err error
	if err = l.near.Do(func() error {
		l.end, err = openEnd(ctx, nearName, l.queues, l.stamps)
		return err
	}); err != nil {
		return err
	}
	for i, p := range l.end.ports {
		c := newClient(p, uint16(i))
		c.paused.Store(true)
		p.role = c
		l.clients = append(l.clients, c)
	}
	l.ran = make(chan error, 1)
	go func() {
		err := l.end.run(ctx, l.near.Do)
		if err != nil {
			stop(err)
		}
		l.ran <- err
	}()
	return nil
}

// flow starts or pauses the clients.
func (l *link) flow(on bool) {
	for _, c := range l.clients {
		if on {
			// The watchdog's time begins now.
			c.answered.Store(now())
		}
		c.paused.Store(!on)
		c.wake()
	}
}

// answers returns how many packets came back.
func (l *link) answers() uint64 {
	var n uint64
	for _, c := range l.clients {
		n += c.answers.Load()
	}
	return n
}

// Suffixes of the interfaces' drop counters. Those for reception also count packets
// that are in the other end's for transmission: those that a veth end refuses to
// take from its peer.
const (
	transmission = " TX"
	reception    = " RX"
)

// interfaces calls fn with both interfaces.
func (l *link) interfaces(fn func(ns *testbed.Namespace, name string) error) error {
	return errors.Join(fn(l.near, nearName), fn(l.far, farName))
}

// drops returns the counters of dropped packets of both interfaces, since the
// beginning.
func (l *link) drops() (map[string]uint64, error) {
	drops := maps.Clone(l.past)
	err := l.interfaces(func(ns *testbed.Namespace, name string) error {
		return ns.Do(func() error {
			dev, err := netlink.LinkByName(name)
			if err != nil {
				return fmt.Errorf("soak: read counters of %s: %w", name, err)
			}
			if s := dev.Attrs().Statistics; s != nil {
				drops[name+transmission] += s.TxDropped
				drops[name+reception] += s.RxDropped
			}
			return nil
		})
	})
	return drops, err
}

// describe tells what waits on what.
func (l *link) describe(ctx context.Context) string {
	s := fmt.Sprintf("link %s; client: %s", l.name, l.end.status(ctx))
	for i, c := range l.clients {
		s += fmt.Sprintf("; queue %d had its last answer %v ago", i, time.Duration(now()-c.answered.Load()).Round(time.Millisecond))
	}
	s += "; opposite: " + l.opposite.status(ctx)
	err := l.interfaces(func(ns *testbed.Namespace, name string) error {
		running, err := ns.Running(name)
		s += fmt.Sprintf("; %s has a carrier: %v", name, running)
		return err
	})
	drops, failed := l.drops()
	s += fmt.Sprintf("; dropped: %v", drops)
	if err := errors.Join(err, failed); err != nil {
		s += fmt.Sprintf("; %v", err)
	}
	return s
}

// close removes everything. The clients' context must be done.
func (l *link) close() error {
	var errs []error
	if l.ran != nil {
		errs = append(errs, <-l.ran)
	}
	if l.end != nil {
		errs = append(errs, l.end.close())
	}
	if l.opposite != nil {
		errs = append(errs, l.opposite.close())
	}
	if l.near != nil {
		// Otherwise the pair lives until the kernel has taken the namespaces
		// down. There is none after a failure between unplug and plug.
		_ = l.near.Delete(nearName)
	}
	return errors.Join(append(errs, harness.Close(l.near), harness.Close(l.far))...)
}
