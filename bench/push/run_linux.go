package push

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/peers"
)

// Run measures. It needs root; without, the error wraps a
// testbed.CapabilityError. A peer that cannot be built is reported in
// Report.Unavailable and does not end the run; a wrong sum does. When ctx is done, Run returns
// what it has and the cause.
//
// Nothing is left behind, however the process ends.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &harness{cfg: cfg, report: newReport(cfg)}
	defer func() { err = errors.Join(err, h.close()) }()
	if err := h.findPeers(ctx); err != nil {
		return nil, err
	}
	if h.bed, err = newBed(ctx, slices.Max(cfg.Workers)); err != nil {
		return nil, err
	}
	for _, batch := range cfg.Batches {
		if err = h.measureBatch(ctx, batch); err != nil {
			break
		}
	}
	h.report.finish()
	return h.report, err
}

// harness is a run.
type harness struct {
	cfg     Config
	report  *Report
	bed     *bed
	zmqPeer *os.File // executable of PeerHash and PeerTable
	peers   []string // that can run
	work    *workload
	load    *shared // its memory
	done    int
}

func (h *harness) close() error {
	var errs []error
	if h.bed != nil {
		errs = append(errs, h.bed.close())
	}
	if h.zmqPeer != nil {
		errs = append(errs, h.zmqPeer.Close())
	}
	return errors.Join(errs...)
}

// findPeers finds out which peers can run, and builds the C++ program.
func (h *harness) findPeers(ctx context.Context) error {
	var reason error
	if slices.ContainsFunc(h.cfg.Peers, func(p string) bool { return p != PeerLibra }) {
		// It lives in memory, so that nothing has to be removed.
		fd, err := unix.MemfdCreate(zmqPeerName, unix.MFD_CLOEXEC)
		if err != nil {
			return fmt.Errorf("push: memory for the C++ program: %w", os.NewSyscallError("memfd_create", err))
		}
		h.zmqPeer = os.NewFile(uintptr(fd), zmqPeerName)
		reason = peers.BuildZMQ(ctx, h.zmqPeer)
		if reason != nil && (!errors.Is(reason, peers.ErrBuild) || ctx.Err() != nil) {
			return reason
		}
	}
	for _, p := range h.cfg.Peers {
		if p != PeerLibra && reason != nil {
			h.report.Unavailable = append(h.report.Unavailable, Unavailable{Peer: p, Reason: reason.Error(), Install: peers.InstallZMQ})
			continue
		}
		h.peers = append(h.peers, p)
	}
	return nil
}

// measureBatch makes the workload for a batch size and measures everything that uses it.
func (h *harness) measureBatch(ctx context.Context, batch int) (err error) {
	workers := slices.Max(h.cfg.Workers)
	if h.load, err = newShared("libra-bench-pushes", workloadSize(batch, workers)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.load.close()) }()
	h.work = &workload{batch: batch, workers: workers, mem: h.load.mem}
	h.work.fill(1)
	share := h.work.hotShare()
	for _, workers := range h.cfg.Workers {
		if err := h.measureGroup(ctx, workers, share); err != nil {
			return err
		}
	}
	return nil
}

// measureGroup lets the peers take turns, round after round.
func (h *harness) measureGroup(ctx context.Context, workers int, hotShare float64) error {
	samples := map[string][]Sample{}
	defer func() {
		for _, p := range h.peers {
			if len(samples[p]) > 0 {
				h.report.add(Result{Workers: workers, Batch: h.work.batch, Peer: p, HotShare: hotShare, Samples: samples[p]})
			}
		}
	}()
	for round := range h.cfg.Rounds {
		for _, p := range h.peers {
			if h.cfg.Progress != nil {
				h.cfg.Progress(Step{
					Done: h.done, Total: len(h.cfg.Batches) * len(h.cfg.Workers) * h.cfg.Rounds * len(h.peers),
					Workers: workers, Batch: h.work.batch, Peer: p, Round: round,
				})
			}
			s, err := h.measure(ctx, p, workers)
			if ctx.Err() != nil {
				return fmt.Errorf("push: interrupted: %w", context.Cause(ctx))
			}
			if err != nil {
				return fmt.Errorf("push: %s, %d workers, batches of %d: %w", p, workers, h.work.batch, err)
			}
			h.done++
			samples[p] = append(samples[p], s)
		}
	}
	return nil
}

// stallLimit is how much longer than asked for a measurement takes if no push is
// acknowledged: on a busy machine, the workers may not even have run.
const stallLimit = 5 * time.Second

// measure runs a peer once and checks its sums.
func (h *harness) measure(ctx context.Context, peer string, workers int) (s Sample, err error) {
	c, err := h.launch(ctx, peer, workers)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, c.kill()) }()
	for _, p := range c.workers {
		p.order(commandStart)
	}
	if err := sleep(ctx, h.cfg.WarmUp); err != nil {
		return s, err
	}
	before, err := h.read(ctx, c)
	if err != nil {
		return s, err
	}
	var after reading
	for moved := false; !moved; {
		if err := sleep(ctx, h.cfg.Duration); err != nil {
			return s, err
		}
		if after, err = h.read(ctx, c); err != nil {
			return s, err
		}
		moved = slices.ContainsFunc(after.marks, func(m mark) bool { return m.Pushes > 0 })
		if !moved && after.own.At-before.own.At > int64(h.cfg.Duration+stallLimit) {
			return s, fmt.Errorf("no push was acknowledged within %v", h.cfg.Duration+stallLimit)
		}
	}
	pushes, err := c.finish(ctx)
	if err != nil {
		return s, err
	}
	if err := h.work.check(pushes, heldRows(c.sums.mem)); err != nil {
		return s, err
	}
	return newSample(peer, before, after, h.work.batch), nil
}

// reading is the state of all counters at a moment.
type reading struct {
	marks      []mark        // of the workers and, last, the server
	own        mark          // of this process, which holds the aggregator's control service
	aggregator time.Duration // for which its program ran
	softirq    uint64        // ns, of the threads that run what interrupts leave over
}

func (h *harness) read(ctx context.Context, c *cluster) (r reading, err error) {
	if r.own, err = now(); err != nil {
		return r, err
	}
	if r.aggregator, err = h.bed.spent(); err != nil {
		return r, err
	}
	if r.softirq, err = softirqTime(); err != nil {
		return r, err
	}
	r.marks, err = c.marks(ctx)
	return r, err
}

// softirqTime returns the CPU time of the ksoftirqd threads.
func softirqTime() (total uint64, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(comm), "ksoftirqd/") {
			continue // another thread, or one that has ended
		}
		line, err := os.ReadFile(filepath.Join(filepath.Dir(name), "schedstat"))
		if err != nil {
			return 0, fmt.Errorf("push: CPU time of ksoftirqd: %w", err)
		}
		first, _, _ := strings.Cut(string(line), " ")
		ns, err := strconv.ParseUint(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("push: CPU time of ksoftirqd: %w", err)
		}
		total += ns
	}
	return total, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
