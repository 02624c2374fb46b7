// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// job is one instance of a job of an aggregator, with the state of its harvest.
type job struct {
	plane    aggregator.Plane
	persist  func(call func() error) error // Aggregator.persist
	spec     *pb.JobSpec
	cfg      aggregator.JobConfig // complete
	places   int                  // reserved for senders
	instance uint64               // random, not 0
	key      access.Secret
	creator  netip.AddrPort
	roster   *roster
	order    []uint16 // workers of rounds by position; guarded by the roster's lock

	running bool // accepts calls; guarded by the aggregator's lock

	// ended is closed, with the reason in why, when the job ends, which ends its streams.
	ended chan struct{}
	why   error
	once  sync.Once

	// harvesting holds a token while a stream harvests; the holder of the token may use the fields
	// below, which outlive a broken stream.
	harvesting chan struct{}
	pending    bool             // the latest harvest is not acknowledged
	frozen     *aggregator.Bank // of the latest harvest, nil if it was empty
	words      []byte           // memory for the sums of a message
	swapping   bool             // a swap has failed, and may have taken effect in part
	gathered   []*child         // whose harvests are in the pending one, or will be in the next one
	sums       *aggregator.Bank // of both, with the job's own once these are frozen; nil without children

	mu       sync.Mutex
	owner    presence
	known    bool        // the owner has got it: it has shown the key
	stream   *connection // that harvests, or waits for the token
	number   uint64      // of the latest harvest
	taken    uint64      // frames in all harvests
	started  time.Time   // start of the latest harvest or of its stream
	oldest   time.Time   // the gradients of the latest harvest were added after this time
	newest   time.Time   // those that are in no harvest were added after this time
	first    bool        // the next harvest is the first of its stream
	children []*child
	interval timing // between the starts of two harvests of a stream
	held     timing // from the start of a harvest to its acknowledgement
	age      timing // from the start of the harvest before one with gradients to its acknowledgement
}

func (a *Aggregator) newJob(spec *pb.JobSpec, cfg aggregator.JobConfig, creator netip.AddrPort) *job {
	j := &job{
		plane: a.cfg.Plane, persist: a.persist, spec: spec, cfg: cfg, places: places(spec), creator: creator,
		instance: a.random.Uint64() | 1, key: a.random.Secret(),
		ended: make(chan struct{}), harvesting: make(chan struct{}, 1), newest: time.Now(),
	}
	j.owner = newPresence(&j.mu, a.cfg.Lease, func() { go a.expire(j) })
	j.roster = &roster{
		mu:      make(chanMutex, 1),
		random:  a.random,
		members: map[uint16]*member{},
		grace:   a.cfg.Grace,
		epoch: func() uint16 {
			if cfg.Workers != 0 {
				return j.cfg.Epoch // answers go to all workers, and none is admitted twice
			}
			return a.nextEpoch(cfg.ID, spec.UsedEpochs...)
		},
		take: func(epoch uint16) { a.takeEpoch(cfg.ID, epoch) },
		may:  j.mayAdmit,
		admit: func(m *member) error {
			err := j.admitSender(m)
			if err == nil {
				a.cfg.Log.Info("worker joined", "job", cfg.ID, "worker", m.ID, "address", m.IP, "epoch", m.Epoch)
			}
			return err
		},
		withdraw: func(m *member, how ending) {
			a.logEnd(cfg.ID, m, how)
			err := a.persist(func() error { return j.plane.RemoveSender(cfg.ID, m.ID) })
			if err != nil && !errors.Is(err, aggregator.ErrClosed) {
				a.cfg.Log.Warn("cannot withdraw a sender", "job", cfg.ID, "sender", m.ID, "error", err)
			}
		},
	}
	return j
}

// places returns the number of senders that a job may have.
func places(spec *pb.JobSpec) int {
	switch {
	case spec.Senders != 0:
		return int(spec.Senders)
	case spec.Workers != 0:
		return int(spec.Workers)
	}
	return DefaultJobSenders
}

// logEnd logs that an admission has ended.
func (a *Aggregator) logEnd(job uint16, m *member, how ending) {
	log := a.cfg.Log.With("job", job, "worker", m.ID, "address", m.IP)
	switch how {
	case left:
		if why := m.departure.GetReason(); why != "" {
			log.Warn("worker left before it had finished", "reason", why)
			return
		}
		log.Info("worker left")
	case away:
		log.Info("worker left, and may come back")
	case unused:
		log.Info("worker left before it had sent anything")
	case vanished:
		log.Warn("lost a worker", "reason", fmt.Sprintf("it was not connected for %v", a.cfg.Grace))
	case restarted:
		log.Warn("lost a worker", "reason", "it was restarted")
	}
}

// mayAdmit refuses a sender for which the job has no place. The caller holds the roster's lock.
func (j *job) mayAdmit(m, replaces *member) error {
	if replaces == nil && len(j.roster.members) >= j.places {
		return status.Errorf(codes.ResourceExhausted,
			"job %d: sender %d: all %d places that the job reserved are taken (senders in its specification)", j.cfg.ID, m.ID,
			j.places)
	}
	return nil
}

// admitSender admits a sender at the data plane. The caller holds the roster's lock.
func (j *job) admitSender(m *member) error {
	if err := j.plane.AddSender(j.cfg.ID, m.SenderConfig); err != nil {
		return planeError(err)
	}
	if j.cfg.Workers != 0 {
		j.order = append(j.order, m.ID)
	}
	return nil
}

// ownerState describes the state of the job's owner.
func (j *job) ownerState() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.owner.isConnected() {
		return fmt.Sprintf("its owner at %v is connected", j.creator)
	}
	return fmt.Sprintf("its owner at %v is not connected, and its lease ends in %v", j.creator,
		j.leaseLeft().Round(time.Millisecond))
}

// leaseLeft returns how long the job still outlives its owner. The caller holds the lock.
func (j *job) leaseLeft() time.Duration {
	if j.owner.isConnected() {
		return j.owner.grace
	}
	return max(0, time.Until(j.owner.until))
}

// holdOwner records that the owner is connected.
func (j *job) holdOwner() *connection {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.owner.beginConnection(errReplaced)
}

// ownerBroke records that the owner's connection broke.
func (j *job) ownerBroke(c *connection) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.owner.connectionBroke(c)
}

// attachStream begins a harvest stream and ends the current one.
func (j *job) attachStream() *connection {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.stream != nil {
		j.stream.endStream(errReplaced)
	}
	j.stream = newConnection()
	return j.stream
}

func (j *job) harvestStream() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.number
}

// stopStreams ends the job's streams and its timers.
func (j *job) stopStreams(why error) {
	j.once.Do(func() {
		j.why = why
		close(j.ended)
	})
	j.mu.Lock()
	j.owner.stopPresence(why)
	j.mu.Unlock()
	j.roster.endAdmissions(why)
}

// releasePlane removes a stopped job from the data plane, after its harvest stream has ended.
func (j *job) releasePlane() error {
	j.harvesting <- struct{}{}
	defer func() { <-j.harvesting }()
	j.frozen = nil
	if err := j.persist(func() error { return j.plane.RemoveJob(j.cfg.ID) }); err != nil {
		return planeError(err)
	}
	return nil
}
