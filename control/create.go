// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"crypto/subtle"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// CreateJob implements the service.
func (a *Aggregator) CreateJob(ctx context.Context, spec *pb.JobSpec) (*pb.Job, error) {
	caller := access.CallerOf(ctx)
	if err := caller.NeedServer(spec.Job); err != nil {
		return nil, err
	}
	cfg, err := a.jobConfig(spec)
	if err != nil {
		return nil, err
	}
	j := a.newJob(spec, cfg, caller.Remote)
	switch again, err := a.reserve(j); {
	case err != nil:
		return nil, err
	case again != nil:
		return a.created(again), nil
	}
	cfg.Epoch = a.nextEpoch(cfg.ID, spec.UsedEpochs...) // of the id that is reserved now: a refused call uses up none
	j.cfg.Epoch = cfg.Epoch
	if err := a.cfg.Plane.AddJob(cfg); err != nil {
		a.forget(j)
		return nil, planeError(err)
	}
	a.takeEpoch(cfg.ID, cfg.Epoch)
	a.start(j)
	a.reach(cfg.ID, spec.ServerMacs)
	a.cfg.Log.Info("job created", "job", cfg.ID, "instance", j.instance, "owner", j.creator, "epoch", cfg.Epoch,
		"mode", cfg.Mode, "arithmetic", cfg.Arithmetic, "slots", cfg.Slots, "senders", j.places)
	return a.created(j), nil
}

// created is the answer to the owner of a job that was created.
func (a *Aggregator) created(j *job) *pb.Job {
	return &pb.Job{
		Epoch: uint32(j.cfg.Epoch), Instance: j.instance, Key: j.key[:], LeaseMs: uint32(a.cfg.Lease.Milliseconds()),
		Marks: a.cfg.Plane.HasMarks() && !j.cfg.Mode.HasRounds(),
	}
}

// nextEpoch returns the next epoch of a job id, which its specification must not name as used.
func (a *Aggregator) nextEpoch(job uint16, used ...uint32) uint16 {
	next := uint16(a.epochs[job].Load() + 1)
	for slices.Contains(used, uint32(next)) {
		next++
	}
	return next
}

// takeEpoch records that an epoch of a job id is used.
func (a *Aggregator) takeEpoch(job, epoch uint16) { a.epochs[job].Store(uint32(epoch)) }

// reserve allocates a job's id and its part of the budgets. If an earlier request of the same
// attempt has created the job, it returns that.
func (a *Aggregator) reserve(j *job) (again *job, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch old := a.jobs[j.cfg.ID]; {
	case old == nil:
	case old.isOf(j.spec) && !old.running:
		return nil, status.Errorf(codes.Unavailable, "job %d: an earlier request of this attempt is being served", j.cfg.ID)
	case old.isOf(j.spec) && old.takeBack():
		return old, nil
	default:
		return nil, status.Errorf(codes.AlreadyExists, "job %d exists: %s; remove it ('libra job remove %d') or use another id",
			j.cfg.ID, old.ownerState(), j.cfg.ID)
	}
	if sameAttempt(a.spent[j.cfg.ID], j.spec.Attempt) {
		return nil, status.Errorf(codes.Aborted, "job %d was created for this attempt before, and has ended", j.cfg.ID)
	}
	slots, places := a.used()
	if free := a.cfg.Slots - slots; j.cfg.Slots > free {
		remedy := "give the aggregator more (slots of its entry in the cluster file)" // switch, or one of standbys or switches
		if len(a.jobs) > 0 {
			remedy = "remove one, or " + remedy
		}
		return nil, status.Errorf(codes.ResourceExhausted, "job %d: slots: %d are wanted, but %d of this aggregator's %d are taken, by %d jobs: %s",
			j.cfg.ID, j.cfg.Slots, slots, a.cfg.Slots, len(a.jobs), remedy)
	}
	if free := a.cfg.Senders - places; j.places > free {
		return nil, status.Errorf(codes.ResourceExhausted, "job %d: senders: %d are wanted, but %d of this aggregator's %d are reserved, by %d jobs: remove one, or reserve fewer",
			j.cfg.ID, j.places, places, a.cfg.Senders, len(a.jobs))
	}
	a.jobs[j.cfg.ID] = j
	return nil, nil
}

// isOf reports whether a specification is of the attempt that has created the job.
func (j *job) isOf(spec *pb.JobSpec) bool {
	return sameAttempt(j.spec.Attempt, spec.Attempt) && proto.Equal(j.spec, spec)
}

// takeBack begins the lease anew for an owner that has not got the answer. It reports false if the
// owner has, or the lease has ended.
func (j *job) takeBack() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.known || !j.owner.deadline.stopTimer() {
		return false
	}
	j.awaitOwner()
	return true
}

// sameAttempt reports whether two requests are of one attempt. One that does not say is another
// each time.
func sameAttempt(one, other []byte) bool {
	return len(one) > 0 && subtle.ConstantTimeCompare(one, other) == 1
}

// noteOwner records that the owner has got the answer to CreateJob: it has shown the key.
func (j *job) noteOwner() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.known = true
}

// spend notes the attempt of a job that ends, if its owner has got it. The caller holds the
// aggregator's lock.
func (a *Aggregator) spend(j *job) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.known {
		a.spent[j.cfg.ID] = j.spec.Attempt
	}
}

// awaitOwner starts the lease of a job whose owner has not got it yet: an outage of its link would
// be noticed later. The caller holds the lock.
func (j *job) awaitOwner() { j.owner.awaitFor(access.Outage + j.owner.grace) }

// used returns the slots and the places for senders of all jobs. The caller holds the lock.
func (a *Aggregator) used() (slots, places int) {
	for _, j := range a.jobs {
		slots += j.cfg.Slots
		places += j.places
	}
	return slots, places
}

// start opens a job for calls. Its lease runs until the owner holds it.
func (a *Aggregator) start(j *job) {
	a.mu.Lock()
	defer a.mu.Unlock()
	j.running = true
	j.mu.Lock()
	defer j.mu.Unlock()
	j.awaitOwner()
}

// forget releases a job's id and its part of the budgets.
func (a *Aggregator) forget(j *job) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.jobs, j.cfg.ID)
}
