package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/libra-ina/libra/bench/baselines"
)

// plainMTU and jumboMTU are the MTUs of the two beds.
const (
	plainMTU = maxPlain - 14
	jumboMTU = jumboSize - 14
)

// Run measures. It needs root; without, the error wraps a testbed.CapabilityError. A peer that cannot be
// run is reported in Report.Unavailable and does not end the run. When ctx is done, Run
// returns what it has and the cause.
//
// Nothing is left behind, however the process ends.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &harness{cfg: cfg, report: &Report{
		Machine: machine(), Rounds: cfg.Rounds, Duration: cfg.Duration,
		Results: []Result{}, Ratios: []Ratio{}, Unavailable: []Unavailable{},
	}}
	defer func() {
		if h.xdp != nil {
			err = errors.Join(err, h.xdp.Close())
		}
	}()
	if err := h.findPeers(ctx); err != nil {
		return nil, err
	}
	err = h.measureAll(ctx)
	h.report.finish()
	return h.report, err
}

// harness is a run.
type harness struct {
	cfg    Config
	xdp    *baselines.Executable // of PeerLibxdp
	peers  []string              // that can run
	report *Report
	done   int
	total  int
}

// group is the peers that take part in a test at a size.
type group struct {
	test  Test
	size  int
	peers []string
}

// measureAll measures group after group, each on the bed for its size.
func (h *harness) measureAll(ctx context.Context) error {
	var plain, jumbo []group
	for _, size := range h.cfg.Sizes {
		for _, test := range h.cfg.Tests {
			g := group{test: test, size: size}
			for _, p := range h.peers {
				if reason := excluded(p, test, size); reason != "" {
					h.exclude(p, reason)
					continue
				}
				g.peers = append(g.peers, p)
			}
			h.total += len(g.peers) * h.cfg.Rounds
			if size > maxPlain {
				jumbo = append(jumbo, g)
			} else {
				plain = append(plain, g)
			}
		}
	}
	if err := h.onBed(ctx, plainMTU, plain); err != nil {
		return err
	}
	return h.onBed(ctx, jumboMTU, jumbo)
}

func (h *harness) onBed(ctx context.Context, mtu int, groups []group) (err error) {
	if len(groups) == 0 {
		return nil
	}
	b, err := newBed(ctx, h.cfg, mtu)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, g := range groups {
		if err := h.measureGroup(ctx, b, g); err != nil {
			return err
		}
	}
	return nil
}

// measureGroup lets the peers take turns, round after round. A peer that
// fails takes no further part; what it had reached does not count.
func (h *harness) measureGroup(ctx context.Context, b *bed, g group) error {
	samples := map[string][]Sample{}
	playing := slices.Clone(g.peers)
	for round := range h.cfg.Rounds {
		for _, p := range slices.Clone(playing) {
			if h.cfg.Progress != nil {
				h.cfg.Progress(Step{Done: h.done, Total: h.total, Test: g.test, Size: g.size, Peer: p, Round: round})
			}
			s, err := h.measure(ctx, b, p, g)
			h.done++
			if ctx.Err() != nil {
				h.results(g, samples)
				return fmt.Errorf("engine: interrupted: %w", context.Cause(ctx))
			}
			if err != nil {
				h.unavailable(p, g.test, g.size, err.Error())
				playing = slices.DeleteFunc(playing, func(q string) bool { return q == p })
				delete(samples, p)
				h.done += h.cfg.Rounds - round - 1
				continue
			}
			samples[p] = append(samples[p], s)
		}
	}
	h.results(g, samples)
	return nil
}

// results adds a group's results, and the ratios, to the report.
func (h *harness) results(g group, samples map[string][]Sample) {
	var group []Result
	for _, p := range g.peers {
		if len(samples[p]) > 0 {
			r := Result{Test: g.test, Size: g.size, Peer: p, Samples: samples[p]}
			r.summarise()
			group = append(group, r)
		}
	}
	h.report.Results = append(h.report.Results, group...)
	ours := slices.IndexFunc(group, func(r Result) bool { return r.Peer == PeerLibra })
	if ours < 0 {
		return
	}
	for i := range group {
		if i != ours {
			h.report.Ratios = append(h.report.Ratios, compare(&group[ours], &group[i]))
		}
	}
}

// exclude notes once that a peer has no part in some tests or sizes.
func (h *harness) exclude(peer, reason string) {
	u := Unavailable{Peer: peer, Reason: reason}
	if !slices.Contains(h.report.Unavailable, u) {
		h.report.Unavailable = append(h.report.Unavailable, u)
	}
}

func (h *harness) unavailable(peer string, test Test, size int, reason string) {
	h.report.Unavailable = append(h.report.Unavailable, Unavailable{Peer: peer, Test: test, Size: size, Reason: reason})
}

// A program is a peer's process.
type program interface {
	// begin and end are called at the limits of the measurement.
	begin() error
	end() error
	// received returns how many frames reached the program's memory.
	received() (uint64, error)
	// finish ends the process and says what it noted.
	finish(ctx context.Context) (notes, error)
	// kill ends the process after an error.
	kill()
}

// notes are what a program knows about its measurement.
type notes struct {
	cpu       usage
	roundTrip []uint32 // ns
	drops     map[string]uint64
}

// reading is the state of the counters at a moment.
type reading struct {
	at     time.Time
	frames uint64
	napi   [2]uint64 // ns; of the tested and of the opposite end
	lost   map[string]uint64
}

func (b *bed) read(test Test, p program) (r reading, err error) {
	if r.lost, err = b.losses(); err != nil {
		return r, err
	}
	for i, pid := range b.threads {
		if r.napi[i], err = taskTime(pid); err != nil {
			return r, err
		}
	}
	r.at = time.Now()
	if test == Transmit {
		r.frames, err = b.arrived()
	} else {
		r.frames, err = p.received()
	}
	return r, err
}

// measure runs a peer once.
func (h *harness) measure(ctx context.Context, b *bed, peer string, g group) (s Sample, err error) {
	if peer == PeerEcho {
		peer, g.test = PeerLibra, Echo
	}
	undo, err := b.prepare(g.test, peer)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	p, err := h.start(ctx, b, peer, g)
	if err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			p.kill()
		}
	}()
	if g.test == Receive {
		frame, err := buildFrame(b.opposite, b.tested, g.size, peer == PeerUDPGSO)
		if err != nil {
			return s, err
		}
		gen := b.generate(frame)
		defer func() { err = errors.Join(err, gen.stop()) }()
	}
	before, after, err := h.window(ctx, b, g.test, p)
	if err != nil {
		return s, err
	}
	n, err := p.finish(ctx)
	if err != nil {
		return s, err
	}
	return newSample(before, after, n), nil
}

// stallLimit is how much longer than asked for a measurement takes if no frame
// arrives: on a busy machine, the peer may not even have run.
const stallLimit = 5 * time.Second

// window waits for the warm-up and reads the counters before and after the measurement.
func (h *harness) window(ctx context.Context, b *bed, test Test, p program) (before, after reading, err error) {
	if err = sleep(ctx, h.cfg.WarmUp); err != nil {
		return before, after, err
	}
	if err = p.begin(); err != nil {
		return before, after, err
	}
	if before, err = b.read(test, p); err != nil {
		return before, after, err
	}
	for {
		if err = sleep(ctx, h.cfg.Duration); err != nil {
			return before, after, err
		}
		if after, err = b.read(test, p); err != nil {
			return before, after, err
		}
		if after.frames != before.frames {
			return before, after, p.end()
		}
		if after.at.Sub(before.at) > h.cfg.Duration+stallLimit {
			return before, after, fmt.Errorf("engine: no frame arrived within %v", after.at.Sub(before.at))
		}
	}
}

func newSample(before, after reading, n notes) Sample {
	frames := float64(after.frames - before.frames)
	tested := float64(after.napi[0] - before.napi[0])
	opposite := float64(after.napi[1] - before.napi[1])
	s := Sample{
		PPS:        frames / after.at.Sub(before.at).Seconds(),
		NsUser:     float64(n.cpu.user) / frames,
		NsKernel:   (float64(n.cpu.kernel) + tested) / frames,
		NsOpposite: opposite / frames,
		drops:      difference(before.lost, after.lost),
	}
	for cause, count := range n.drops {
		s.drops[cause] += count
	}
	s.P50us, s.P99us = latencies(n.roundTrip)
	return s
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

// start starts a peer's program at the tested end and waits until it moves frames.
func (h *harness) start(ctx context.Context, b *bed, peer string, g group) (program, error) {
	if peer == PeerDPDKAFXDP || peer == PeerDPDKAFPacket {
		return startTestpmd(ctx, b, peer, g)
	}
	frame, err := buildFrame(b.tested, b.opposite, g.size, peer == PeerUDPGSO)
	if err != nil {
		return nil, err
	}
	cfg := peerConfig{
		name: peer, test: g.test, size: g.size, iface: b.host().Interface, cpu: h.cfg.CPUs[0],
		local: b.tested.ip, remote: b.opposite.ip,
	}
	return startChild(ctx, h.command(&cfg), b.host(), frame)
}
