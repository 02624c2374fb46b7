// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/report/experiment"
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

	past    map[string]uint64 // counters of interfaces that are gone
	running errgroup.Group    // the clients' end

	report  *LinkReport
	deck    deck
	rand    *rand.Rand
	total   tally         // what was counted up to the last stock
	memory  memoryWatch   // memory of the server's process
	flowed  time.Duration // undisturbed
	packets uint64        // answered in that time

	happens disturbance // disturbance of this round
	event   Event
}

// buildLink makes the namespaces and plugs the cable in.
func (l *link) buildLink() (err error) {
	if l.near, err = testbed.NewNamespace(); err != nil {
		return err
	}
	if l.far, err = testbed.NewNamespace(); err != nil {
		return err
	}
	return l.plugCable()
}

func (l *link) plugCable() error {
	return l.near.Veth(testbed.VethConfig{Names: [2]string{nearName, farName}, Peer: l.far, Queues: l.queues,
		MTU: plainMTU})
}

// unplugCable removes the cable, after adding its counters to those of the past.
func (l *link) unplugCable() error {
	drops, err := l.countDrops()
	if err != nil {
		return err
	}
	l.past = drops
	return l.near.Delete(nearName)
}

// startClients opens the clients and the opposite and runs the clients, paused. A client
// that fails calls stop.
func (l *link) startClients(ctx context.Context, stop context.CancelCauseFunc) error {
	if err := l.opposite.startEnd(ctx); err != nil {
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
	l.running.Go(func() error {
		err := l.end.servePorts(ctx, l.near.Do)
		stop(err) // which does nothing once ctx is done, as it is without a failure
		return err
	})
	return nil
}

func (l *link) setFlowing(on bool) {
	for _, c := range l.clients {
		if on {
			// The watchdog's time begins now.
			c.answered.Store(now())
		}
		c.paused.Store(!on)
		c.wakePort()
	}
}

func (l *link) countAnswers() uint64 {
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

func (l *link) forInterfaces(fn func(ns *testbed.Namespace, name string) error) error {
	return errors.Join(fn(l.near, nearName), fn(l.far, farName))
}

// countDrops returns the counters of dropped packets of both interfaces, since the
// beginning.
func (l *link) countDrops() (map[string]uint64, error) {
	drops := maps.Clone(l.past)
	err := l.forInterfaces(func(ns *testbed.Namespace, name string) error {
		return ns.Do(func() error {
			dev, err := netlink.LinkByName(name)
			if err != nil {
				return fmt.Errorf("soak: read counters of %s: %w", name, err)
			}
			s := dev.Attrs().Statistics
			drops[name+transmission] += s.TxDropped
			drops[name+reception] += s.RxDropped
			return nil
		})
	})
	return drops, err
}

func (l *link) describeStall(ctx context.Context) string {
	s := fmt.Sprintf("link %s; client: %s", l.name, l.end.describePorts(ctx))
	for i, c := range l.clients {
		s += fmt.Sprintf("; queue %d had its last answer %v ago", i,
			time.Duration(now()-c.answered.Load()).Round(time.Millisecond))
	}
	s += "; opposite: " + l.opposite.describeEnd(ctx)
	err := l.forInterfaces(func(ns *testbed.Namespace, name string) error {
		running, err := ns.Running(name)
		s += fmt.Sprintf("; %s has a carrier: %v", name, running)
		return err
	})
	drops, failed := l.countDrops()
	s += fmt.Sprintf("; dropped: %v", drops)
	if err := errors.Join(err, failed); err != nil {
		s += fmt.Sprintf("; %v", err)
	}
	return s
}

// Close removes everything. The clients' context must be done.
func (l *link) Close() error {
	ran := l.running.Wait()
	near, far := experiment.Close(l.end), l.opposite.closeEnd()
	if l.near != nil {
		// Otherwise the pair lives until the kernel has taken the namespaces
		// down. There is none after a failure between unplug and plug.
		_ = l.near.Delete(nearName)
	}
	return errors.Join(ran, near, far, experiment.Close(l.near, l.far))
}

// disturbance is something that happens to a link while packets flow.
type disturbance struct {
	kind string
	// exact is true if all packets that it costs are in the kernel's counters.
	exact bool
	// size is how large an answered packet has to be at least for the link to
	// count as working again.
	size int
	// spoil breaks something, which then stays broken for a while. It is nil
	// where repair alone disturbs.
	spoil, repair action
}

type action func(ctx context.Context, l *link) error

// disturbLink makes it happen and returns when the repair began.
func (d disturbance) disturbLink(ctx context.Context, l *link) (since int64, err error) {
	hold := minHold + time.Duration(l.rand.Int64N(int64(maxHold-minHold)))
	if d.spoil != nil {
		if err := d.spoil(ctx, l); err != nil {
			return 0, err
		}
		if err := experiment.Sleep(ctx, hold); err != nil {
			return 0, err
		}
	}
	return now(), d.repair(ctx, l)
}

// disturbances returns what may happen to a link.
func disturbances(l *link) []disturbance {
	list := []disturbance{
		{kind: "queue closed and opened", repair: onQueues(closeQueue)},
		{kind: "queue reopened", repair: onQueues(reopenQueue)},
		{kind: "interface down and up", spoil: setUp(l.near, nearName, false), repair: setUp(l.near, nearName, true)},
		{kind: "far interface down and up", spoil: setUp(l.far, farName, false), repair: setUp(l.far, farName, true)},
		// Too small for all but the smallest packets.
		{kind: "MTU shrunk and restored", spoil: setMTU(smallMTU), repair: setMTU(plainMTU), exact: true, size: largest},
		{kind: "link deleted and recreated",
			spoil:  func(context.Context, *link) error { return l.unplugCable() },
			repair: func(context.Context, *link) error { return errors.Join(l.plugCable(), l.opposite.linkReplaced()) },
		},
	}
	server, ok := l.opposite.(*process)
	if !ok {
		return append(list, disturbance{kind: "XDP program detached and attached", spoil: stop, repair: start})
	}
	return append(list,
		disturbance{kind: "server killed and restarted", spoil: stop, repair: start},
		disturbance{kind: "server's queue closed and opened", repair: onQueues(server.queueCommand(opClose))},
		disturbance{kind: "server's queue reopened", repair: onQueues(server.queueCommand(opReopen))},
	)
}

// onQueues does something to one queue or, half of the time, to all at once.
func onQueues(do func(ctx context.Context, l *link, queue int) error) action {
	return func(ctx context.Context, l *link) error {
		if l.rand.IntN(2) == 0 {
			return do(ctx, l, l.rand.IntN(l.queues))
		}
		var all errgroup.Group
		for q := range l.queues {
			all.Go(func() error { return do(ctx, l, q) })
		}
		return all.Wait()
	}
}

// closeQueue closes a client's socket while its owner uses it; the owner then
// opens another.
func closeQueue(_ context.Context, l *link, q int) error { return l.clients[q].sock.Load().Close() }

func reopenQueue(ctx context.Context, l *link, q int) error {
	return l.near.Do(func() error { return l.clients[q].reopenSocket(ctx) })
}

func setUp(ns *testbed.Namespace, name string, up bool) action {
	return func(context.Context, *link) error {
		if err := ns.SetUp(name, up); err != nil {
			return fmt.Errorf("soak: set %s up (%v): %w", name, up, err)
		}
		return nil
	}
}

func setMTU(mtu int) action {
	return func(_ context.Context, l *link) error {
		text := strconv.Itoa(mtu)
		return errors.Join(l.near.SetDeviceAttr(nearName, "mtu", text), l.far.SetDeviceAttr(farName, "mtu", text))
	}
}

func stop(_ context.Context, l *link) error { return l.opposite.stopEnd() }

func start(ctx context.Context, l *link) error { return l.opposite.startEnd(ctx) }

// deck deals disturbances: each once in random order, then all again.
type deck struct{ all, rest []disturbance }

func (d *deck) drawNext(r *rand.Rand) disturbance {
	if len(d.rest) == 0 {
		d.rest = append(d.rest, d.all...)
		r.Shuffle(len(d.rest), func(i, j int) { d.rest[i], d.rest[j] = d.rest[j], d.rest[i] })
	}
	last := len(d.rest) - 1
	x := d.rest[last]
	d.rest = d.rest[:last]
	return x
}
