package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
)

// disturbance is something that happens to a link while packets flow.
type disturbance struct {
	kind string
	// exact says that all packets that it costs are in the kernel's counters.
	exact bool
	// size is how large an answered packet has to be at least for the link to
	// count as working again.
	size int
	// run makes it happen. What it breaks stays broken for the time hold. It
	// returns when it has put things right, as far as that is up to it, and when
	// it began to.
	run func(ctx context.Context, l *link, r *rand.Rand, hold time.Duration) (since int64, err error)
}

// disturbances returns what may happen to a link.
func disturbances(l *link) []disturbance {
	list := []disturbance{
		{kind: "queue closed and opened", run: onQueues(closeQueue)},
		{kind: "queue reopened", run: onQueues(reopenQueue)},
		{kind: "interface down and up", run: downAndUp(nearName)},
		{kind: "far interface down and up", run: downAndUp(farName)},
		{kind: "MTU shrunk and restored", run: changeMTU, exact: true, size: largest},
		{kind: "link deleted and recreated", run: recreate},
	}
	server, ok := l.opposite.(*process)
	if !ok {
		return append(list, disturbance{kind: "XDP program detached and attached", run: restart})
	}
	return append(list,
		disturbance{kind: "server killed and restarted", run: restart},
		disturbance{kind: "server's queue closed and opened", run: onQueues(func(ctx context.Context, _ *link, q int) error {
			_, err := server.ask(ctx, opClose, q)
			return err
		})},
		disturbance{kind: "server's queue reopened", run: onQueues(func(ctx context.Context, _ *link, q int) error {
			_, err := server.ask(ctx, opReopen, q)
			return err
		})},
	)
}

// onQueues does something to one queue or, half of the time, to all at once.
func onQueues(do func(ctx context.Context, l *link, queue int) error) func(context.Context, *link, *rand.Rand, time.Duration) (int64, error) {
	return func(ctx context.Context, l *link, r *rand.Rand, _ time.Duration) (int64, error) {
		since := now()
		if r.IntN(2) == 0 {
			return since, do(ctx, l, r.IntN(l.queues))
		}
		var all sync.WaitGroup
		errs := make([]error, l.queues)
		for q := range l.queues {
			all.Go(func() { errs[q] = do(ctx, l, q) })
		}
		all.Wait()
		return since, errors.Join(errs...)
	}
}

// closeQueue closes a client's socket while its owner uses it; the owner then
// opens another.
func closeQueue(_ context.Context, l *link, q int) error { return l.clients[q].sock.Load().Close() }

func reopenQueue(ctx context.Context, l *link, q int) error {
	return l.near.Do(func() error { return l.clients[q].reopen(ctx) })
}

func downAndUp(name string) func(context.Context, *link, *rand.Rand, time.Duration) (int64, error) {
	return func(ctx context.Context, l *link, _ *rand.Rand, hold time.Duration) (int64, error) {
		ns := l.near
		if name == farName {
			ns = l.far
		}
		if err := ns.SetUp(name, false); err != nil {
			return 0, fmt.Errorf("soak: set %s down: %w", name, err)
		}
		if err := pause(ctx, hold); err != nil {
			return 0, err
		}
		since := now()
		if err := ns.SetUp(name, true); err != nil {
			return 0, fmt.Errorf("soak: set %s up: %w", name, err)
		}
		return since, nil
	}
}

// changeMTU makes the MTU too small for all but the smallest packets.
func changeMTU(ctx context.Context, l *link, _ *rand.Rand, hold time.Duration) (int64, error) {
	if err := l.setMTU(strconv.Itoa(smallMTU)); err != nil {
		return 0, err
	}
	if err := pause(ctx, hold); err != nil {
		return 0, err
	}
	since := now()
	return since, l.setMTU(strconv.Itoa(plainMTU))
}

func recreate(ctx context.Context, l *link, _ *rand.Rand, hold time.Duration) (int64, error) {
	if err := l.unplug(); err != nil {
		return 0, err
	}
	if err := pause(ctx, hold); err != nil {
		return 0, err
	}
	since := now()
	return since, errors.Join(l.plug(), l.opposite.relinked())
}

// restart stops the opposite and starts it again.
func restart(ctx context.Context, l *link, _ *rand.Rand, hold time.Duration) (int64, error) {
	if err := l.opposite.stop(); err != nil {
		return 0, err
	}
	if err := pause(ctx, hold); err != nil {
		return 0, err
	}
	since := now()
	return since, l.opposite.start(ctx)
}

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
