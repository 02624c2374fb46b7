// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"cmp"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// Config configures a [Model].
type Config struct {
	// Address is the aggregator's IPv4 address. [Model.Process] needs it; without it no frame is
	// addressed to the aggregator.
	Address netip.Addr

	// Port is the UDP port of the aggregator and of the hosts whose frames
	// are forwarded. 0 means [wire.DefaultPort].
	Port uint16

	// AnswerEach makes the model ignore [wire.FlagQuiet] and [wire.FlagCover], and its banks have no
	// marks, as permitted for a receiver that cannot read its whole duplicate filter, such as a
	// switch; nor does it have mode [Acked].
	AnswerEach bool

	// Sample is the number of frames of which one is measured; see [Model.JobTimes]. 0 measures none.
	// Clock shows the time that has passed since some moment; without it, nothing is measured.
	Sample int
	Clock  func() time.Duration
}

// Model is the aggregator in plain Go. It is the reference for the other data planes, so it prefers
// clarity to speed; and it is the data plane of the UDP backend. Several goroutines may use it at
// once.
type Model struct {
	address netip.Addr
	port    uint16
	each    bool // see Config.AnswerEach
	draw    telemetry.Draw
	clock   func() time.Duration // nil if nothing is drawn

	mu       sync.Mutex
	closed   bool
	jobs     [MaxJobs]*job
	routes   map[[6]byte]int
	counters Counters
	pairs    []pair // pairs of the frame that is being processed
}

var _ Plane = (*Model)(nil)

type job struct {
	JobConfig
	arithmetic arithmetic
	senders    map[uint16]*sender
	departed   map[uint16]Mark // of senders that were withdrawn since the last Swap
	positions  int             // assigned to senders so far
	banks      [2]bank         // the second is empty in Acked
	current    int             // the bank that frames add to; in rounds, each group has its own
	frozen     *Bank           // bank of the last Swap, nil once cleared
	groups     []group         // of modes with rounds
	scale      negotiation     // of Fixed
	counters   JobCounters
	times      telemetry.Histogram // of drawn frames
}

type bank struct {
	slots         []int64
	touched       []uint8 // as in Bank
	frames, pairs uint64
}

type sender struct {
	SenderConfig
	position int // among the job's workers: the order of AddSender
	seen     retransmit.Filter
	counters SenderCounters
}

// NewModel returns a model without jobs.
func NewModel(cfg Config) (*Model, error) {
	if cfg.Address.IsValid() && !cfg.Address.Is4() {
		return nil, fmt.Errorf("aggregator: address %v: %w: aggregators have an IPv4 address",
			cfg.Address, ErrUnsupported)
	}
	if err := telemetry.CheckSample(cfg.Sample); err != nil {
		return nil, fmt.Errorf("aggregator: sample: %w: %w", ErrConfig, err)
	}
	cfg.Port = cmp.Or(cfg.Port, wire.DefaultPort)
	var draw telemetry.Draw
	if cfg.Clock != nil {
		draw = telemetry.NewDraw(cfg.Sample)
	}
	return &Model{
		draw:    draw,
		address: cfg.Address,
		port:    cfg.Port,
		each:    cfg.AnswerEach,
		clock:   cfg.Clock,
		routes:  make(map[[6]byte]int),
		pairs:   make([]pair, 0, wire.MaxStripes*wire.Lanes),
	}, nil
}

// AddJob implements [Plane].
func (m *Model) AddJob(cfg JobConfig) error {
	cfg, err := cfg.Complete()
	if err != nil {
		return err
	}
	if m.each && cfg.Mode == Acked {
		return jobError(cfg.ID, ErrUnsupported, "%v mode: this model answers each frame, as a switch", cfg.Mode)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	if m.jobs[cfg.ID] != nil {
		return fmt.Errorf("job %d: %w", cfg.ID, ErrJobExists)
	}
	j := &job{
		JobConfig:  cfg,
		arithmetic: newArithmetic(cfg),
		senders:    make(map[uint16]*sender),
		departed:   make(map[uint16]Mark),
		groups:     newGroups(cfg),
	}
	for i := range cfg.Banks() {
		j.banks[i].slots = make([]int64, cfg.Slots)
		if n := cfg.Blocks(); n > 0 {
			j.banks[i].touched = make([]uint8, n)
		}
	}
	m.jobs[cfg.ID] = j
	return nil
}

// RemoveJob implements [Plane].
func (m *Model) RemoveJob(id uint16) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.findJob(id); err != nil {
		return err
	}
	m.jobs[id] = nil
	return nil
}

// AddSender implements [Plane].
func (m *Model) AddSender(id uint16, s SenderConfig) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.findJob(id)
	if err != nil {
		return err
	}
	if err := j.CheckSender(s, j.senders[s.ID] != nil, j.positions); err != nil {
		return err
	}
	s.IP = s.IP.Unmap()
	s.Port = cmp.Or(s.Port, m.port)
	j.senders[s.ID] = &sender{SenderConfig: s, position: j.positions}
	j.positions++
	return nil
}

// RemoveSender implements [Plane].
func (m *Model) RemoveSender(id, sender uint16) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, s, err := m.findSender(id, sender)
	if err != nil {
		return err
	}
	delete(j.senders, sender)
	j.departed[sender] = s.mark()
	return nil
}

// Swap implements [Plane].
func (m *Model) Swap(id uint16) (*Bank, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.findJob(id)
	if err != nil {
		return nil, err
	}
	if err := j.CheckSwap(j.frozen); err != nil {
		return nil, err
	}
	b := &j.banks[j.current]
	j.current ^= 1
	j.frozen = &Bank{Job: id, Epoch: j.Epoch, Slots: b.slots, Touched: b.touched, Frames: b.frames, Pairs: b.pairs}
	if marks := j.takeMarks(); !m.each {
		j.frozen.Marks = marks
	}
	return j.frozen, nil
}

// takeMarks returns the marks of the bank that is swapped.
func (j *job) takeMarks() []Mark {
	for id, s := range j.senders {
		j.departed[id] = s.mark()
	}
	defer clear(j.departed)
	return SortedMarks(j.departed)
}

func (s *sender) mark() Mark { return NewMark(s.SenderConfig, s.seen.Entry) }

// Clear implements [Plane].
func (m *Model) Clear(frozen *Bank) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.findJob(frozen.Job)
	if err != nil {
		return err
	}
	if err := j.CheckClear(j.frozen, frozen); err != nil {
		return err
	}
	b := &j.banks[j.current^1]
	frozen.Wipe()
	b.frames, b.pairs = 0, 0
	j.frozen = nil
	return nil
}

// Counters implements [Plane].
func (m *Model) Counters() (Counters, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return Counters{}, ErrClosed
	}
	return m.counters, nil
}

// JobCounters implements [Plane].
func (m *Model) JobCounters(id uint16) (JobCounters, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.findJob(id)
	if err != nil {
		return JobCounters{}, err
	}
	return j.counters, nil
}

// JobTimes implements [Plane]. The times are those in which the model computes, without what a link
// does before and after.
func (m *Model) JobTimes(id uint16) (telemetry.Distribution, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.findJob(id)
	if err != nil {
		return telemetry.Distribution{}, err
	}
	return j.times.Distribution(), nil
}

// SenderCounters implements [Plane].
func (m *Model) SenderCounters(id, sender uint16) (SenderCounters, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, s, err := m.findSender(id, sender)
	if err != nil {
		return SenderCounters{}, err
	}
	return s.counters, nil
}

// Close implements [Plane].
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.jobs = [MaxJobs]*job{}
	clear(m.routes)
	return nil
}

// AddRoute declares that the host with the address mac is behind a port. Libra frames between hosts
// are forwarded if both have a route, to different ports, and the frame arrived on the port of its
// sender. It replaces an earlier route.
func (m *Model) AddRoute(mac [6]byte, port int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.routes[mac] = port
	return nil
}

// RemoveRoute removes the route of AddRoute. Removing a missing route is no error.
func (m *Model) RemoveRoute(mac [6]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	delete(m.routes, mac)
	return nil
}

// findJob returns a job's state. The caller holds the lock.
func (m *Model) findJob(id uint16) (*job, error) {
	if m.closed {
		return nil, ErrClosed
	}
	if id >= MaxJobs || m.jobs[id] == nil {
		return nil, fmt.Errorf("job %d: %w", id, ErrNoJob)
	}
	return m.jobs[id], nil
}

// findSender returns a sender's state and its job's. The caller holds the lock.
func (m *Model) findSender(id, sender uint16) (*job, *sender, error) {
	j, err := m.findJob(id)
	if err != nil {
		return nil, nil, err
	}
	s := j.senders[sender]
	if s == nil {
		return nil, nil, fmt.Errorf("job %d: sender %d: %w", id, sender, ErrNoSender)
	}
	return j, s, nil
}

// HasMarks implements [Plane].
func (m *Model) HasMarks() bool { return true }

// Pages implements [Plane].
func (m *Model) Pages() int { return wire.MaxPages }
