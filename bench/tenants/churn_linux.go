package tenants

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
)

const (
	churnJob   = 4
	firstChurn = 100 // the first job that is created again and again
	churnLoops = 4   // of each kind
)

// churnConfig is a tenant whose senders and jobs come and go, as fast as the
// daemon answers.
type churnConfig struct {
	harness.Place
	Duration time.Duration
}

// churnResult is what it answers.
type churnResult struct {
	Joins, Jobs uint64 // each with its end
	Seconds     float64
}

func (c *churnConfig) serve(ctx context.Context) error {
	return c.WithJob(ctx, churnSpec(churnJob), func(ctx context.Context, client pb.AggregatorClient, _ *control.Owned) error {
		return whenAsked(ctx, func(ctx context.Context) (churnResult, error) { return c.run(ctx, client) })
	})
}

// run churns for a little longer than the tenants push.
func (c *churnConfig) run(ctx context.Context, client pb.AggregatorClient) (r churnResult, err error) {
	begin := time.Now()
	end := begin.Add(c.Duration + c.Duration/4)
	var joins, jobs [churnLoops]uint64
	loops, ctx := errgroup.WithContext(ctx)
	for i := range churnLoops {
		loops.Go(func() error {
			return repeat(end, &joins[i], func() error { return c.comeAndGo(ctx, client, uint32(i)) })
		})
		loops.Go(func() error {
			return repeat(end, &jobs[i], func() error { return createAndRemove(ctx, client, firstChurn+uint32(i)) })
		})
	}
	if err := loops.Wait(); err != nil {
		return r, err
	}
	r.Seconds = time.Since(begin).Seconds()
	for i := range churnLoops {
		r.Joins += joins[i]
		r.Jobs += jobs[i]
	}
	return r, nil
}

// repeat does something until a time, and counts. What has begun is finished: the
// daemon would give up a call with a deadline before the caller knows of it.
func repeat(end time.Time, n *uint64, do func() error) error {
	for ; time.Now().Before(end); *n++ {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// comeAndGo joins the job and leaves it.
func (c *churnConfig) comeAndGo(ctx context.Context, client pb.AggregatorClient, sender uint32) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	admission, err := c.Join(ctx, client, churnJob, sender, nil)
	if err != nil {
		return err
	}
	_, err = client.Leave(ctx, &pb.LeaveRequest{Job: churnJob, Sender: sender, Token: admission.Token})
	return control.CallError("aggregator", "leave", err)
}

func churnSpec(id uint32) *pb.JobSpec {
	return &pb.JobSpec{
		Job: id, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT, Slots: slots, Senders: churnLoops,
	}
}

// createAndRemove creates a job and removes it.
func createAndRemove(ctx context.Context, client pb.AggregatorClient, id uint32) error {
	job, err := client.CreateJob(ctx, churnSpec(id))
	if err != nil {
		return control.CallError("aggregator", "create job", err)
	}
	_, err = client.RemoveJob(ctx, &pb.RemoveJobRequest{Job: id, Key: job.Key})
	return control.CallError("aggregator", "remove job", err)
}
