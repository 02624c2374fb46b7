// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"time"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// Members is where a parameter server admits the workers whose frames it accepts; a
// transport.Server is one.
type Members interface {
	Admit(ctx context.Context, sender uint16, from netip.AddrPort, epoch uint16) error
	Remove(ctx context.Context, sender uint16) error
}

// ParameterServerConfig configures a [ParameterServer]. Fields without a documented zero value are
// required.
type ParameterServerConfig struct {
	Job      uint16
	Instance uint64 // of the job at the aggregator
	// Shares are the instances of the jobs of the hot set's shares after the first, whose is Instance,
	// if it is divided. Then KeepLog must not be set.
	Shares []uint64
	// Plan, if not nil, returns what a worker does with the hot set's parts, if the server has planned
	// that. When it returns another version, [ParameterServer.PlanChanged] tells the workers.
	Plan func(worker uint16) *pb.Plan
	// ChangePlan makes the job follow another plan. It returns when it does; nil refuses it.
	ChangePlan func(ctx context.Context, req *pb.ChangePlanRequest) (*pb.ChangePlanResponse, error)
	// Aggregator is the index of that: 0 is the cluster's switch, then come its standbys.
	Aggregator int
	Port       uint16 // source port of the workers' frames, unless they name another
	Dimension  int
	HotSet     []byte   // fingerprint that every worker must present
	Workers    []uint16 // the senders that take part
	Members    Members
	// KeepLog means that workers have to keep the frames that the aggregator has acknowledged, so that
	// the job can go on without it; see [ParameterServer.Fence].
	KeepLog bool
	// Settled, if not nil, is called before a worker gets the mark by which it settles. From its
	// return on, ends of steps from the worker's frames before number next must not count.
	Settled func(ctx context.Context, sender uint16, next uint32) error

	// Sync means that the workers take steps together: the loss of one ends the job, unless Rewind is
	// set. Otherwise a lost worker may join again.
	Sync bool
	// Rewind, if not nil, makes a job with Sync survive the loss of workers that keep logs and join
	// again. When it is called, no worker is admitted. It must drop the open step and call
	// [ParameterServer.Rewind], in one call of the store's goroutine, and return when that is done. An
	// error means that the server ends.
	Rewind func(ctx context.Context) error
	// Grace is how long an admission outlives its worker's connection; 0 means
	// [DefaultGrace].
	Grace time.Duration
	// Rejoin is how long a lost worker may take to join again, if it may; 0 means [DefaultRejoin].
	// After it, the worker is given up.
	Rejoin time.Duration

	// Agree has the values on which workers must agree with this server, by field of the cluster
	// configuration, and [IndexField] if there are several servers. Workers may have more fields;
	// these must be equal among them.
	Agree map[string]string
	// FirstStep returns the step at which a worker starts, because the store has the earlier ones;
	// nil means 0. Barriers start at the largest of them.
	FirstStep func(sender uint16) uint64
	// Checkpoints are the steps from which the server could start, if there are several servers,
	// which must start from the same one.
	Checkpoints []uint64
	// Report, if not nil, is called with a worker's progress. It must return when everything that
	// was acknowledged to the worker is applied.
	Report func(ctx context.Context, sender uint16, r *pb.ReportRequest) error
	// Lost, if not nil, is also called when a worker is lost before it has finished, whether or not
	// it joins again later.
	Lost func(sender uint16)
	// Away, if not nil, is called when a worker leaves that may come back, before it gets the answer.
	// Unless Sync is set, it must return when everything that was acknowledged to the worker is
	// applied.
	Away func(ctx context.Context, sender uint16) error
	// Diverged, if not nil, is called before Lost if the worker leaves because its gradients have
	// become too large. It must not wait.
	Diverged func(sender uint16)
	// Commit is called when all workers have arrived at a barrier: it must return when everything
	// that was acknowledged to them is applied. Nil refuses barriers.
	Commit func(ctx context.Context, step uint64) error
	// Reduce is Commit, and returns the sums of the step, which it does not change later; or a
	// [*DroppedError] if it has ended the step without its gradients. Drop always does. Set both or
	// neither: nil refuses calls of Reduce. quiet means that the aggregator holds nothing that was
	// acknowledged to the workers: an earlier call of either that was not quiet has harvested all of
	// it.
	Reduce func(ctx context.Context, step uint64, quiet bool) (Sums, error)
	Drop   func(ctx context.Context, step uint64, quiet bool) error
	// ReduceHere is Reduce of a quiet step, in a call of [ParameterServer.Arrive]. It calls over
	// with the sums, or with why it drops the step, before it gives them to any worker: from then on
	// workers may arrive at the end of the next step. Give is called with the sums of other steps when
	// they are over, and for steps without sums. Both are required if Arrive is called.
	ReduceHere func(step uint64, over func(Sums, *DroppedError))
	Give       func(step uint64, sums Sums, ok bool)
	// Stats returns what only the server's store knows; nil adds nothing.
	Stats func(ctx context.Context) (*pb.ServerStats, error)
	// Drain moves the job to another aggregator: that with the index To or, if it is nil, to any or,
	// without one that takes it, to the server; or, if it follows a plan, from the switch with a name.
	// It returns when that is done. Nil refuses it.
	Drain func(ctx context.Context, req *pb.DrainRequest) (*pb.DrainResponse, error)
	// Random is the source of epochs and tokens; nil means crypto/rand.
	Random io.Reader
	Log    *slog.Logger // nil means [slog.Default]
}

// DefaultRejoin is how long a lost worker may take to join again.
const DefaultRejoin = 30 * time.Second
