package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/testbed"
)

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

// action is done to a link.
type action func(ctx context.Context, l *link, r *rand.Rand) error

// run makes it happen and returns when the repair began.
func (d disturbance) run(ctx context.Context, l *link, r *rand.Rand, hold time.Duration) (since int64, err error) {
	if d.spoil != nil {
		if err := d.spoil(ctx, l, r); err != nil {
			return 0, err
		}
		if err := harness.Sleep(ctx, hold); err != nil {
			return 0, err
		}
	}
	return now(), d.repair(ctx, l, r)
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
		{kind: "link deleted and recreated", spoil: unplug, repair: plug},
	}
	server, ok := l.opposite.(*process)
	if !ok {
		return append(list, disturbance{kind: "XDP program detached and attached", spoil: stop, repair: start})
	}
	return append(list,
		disturbance{kind: "server killed and restarted", spoil: stop, repair: start},
		disturbance{kind: "server's queue closed and opened", repair: onQueues(server.queue(opClose))},
		disturbance{kind: "server's queue reopened", repair: onQueues(server.queue(opReopen))},
	)
}

// onQueues does something to one queue or, half of the time, to all at once.
func onQueues(do func(ctx context.Context, l *link, queue int) error) action {
	return func(ctx context.Context, l *link, r *rand.Rand) error {
		if r.IntN(2) == 0 {
			return do(ctx, l, r.IntN(l.queues))
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
	return l.near.Do(func() error { return l.clients[q].reopen(ctx) })
}

func setUp(ns *testbed.Namespace, name string, up bool) action {
	return func(context.Context, *link, *rand.Rand) error {
		if err := ns.SetUp(name, up); err != nil {
			return fmt.Errorf("soak: set %s up (%v): %w", name, up, err)
		}
		return nil
	}
}

// setMTU changes the MTU of both ends.
func setMTU(mtu int) action {
	return func(_ context.Context, l *link, _ *rand.Rand) error {
		text := strconv.Itoa(mtu)
		return errors.Join(l.near.SetDeviceAttr(nearName, "mtu", text), l.far.SetDeviceAttr(farName, "mtu", text))
	}
}

func unplug(_ context.Context, l *link, _ *rand.Rand) error { return l.unplug() }

func plug(_ context.Context, l *link, _ *rand.Rand) error {
	return errors.Join(l.plug(), l.opposite.relinked())
}

func stop(_ context.Context, l *link, _ *rand.Rand) error { return l.opposite.stop() }

func start(ctx context.Context, l *link, _ *rand.Rand) error { return l.opposite.start(ctx) }

// deck deals disturbances: each once in random order, then all again.
type deck struct {
	all  []disturbance
	rest []disturbance
	rand *rand.Rand
}

func (d *deck) next() disturbance {
	if len(d.rest) == 0 {
		d.rest = append(d.rest, d.all...)
		d.rand.Shuffle(len(d.rest), func(i, j int) { d.rest[i], d.rest[j] = d.rest[j], d.rest[i] })
	}
	last := len(d.rest) - 1
	x := d.rest[last]
	d.rest = d.rest[:last]
	return x
}
