// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Members implements the service.
func (a *Aggregator) Members(ctx context.Context, req *pb.MembersRequest) (*pb.MembersResponse, error) {
	if err := access.CallerOf(ctx).NeedWorker(req.Job, req.Sender); err != nil {
		return nil, err
	}
	j, err := a.job(req.Job)
	if err != nil {
		return nil, err
	}
	if j.cfg.Workers == 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "job %d has no rounds, so its workers have no positions", req.Job)
	}
	if _, err := j.roster.memberOf(req.Sender, req.Token); err != nil {
		return nil, err
	}
	j.roster.mu.Lock()
	defer j.roster.mu.Unlock()
	out := &pb.MembersResponse{}
	for _, id := range j.order {
		out.Members = append(out.Members, &pb.Member{Sender: uint32(id), Left: j.roster.members[id] == nil})
	}
	return out, nil
}

// A job of [JoinRounds] has no hot set. In the place of its fingerprint it has a text: this, and
// what its workers add.
const roundsMark = "rounds: "

// otherHotSet is the refusal of a sender whose fingerprint is not that of the job.
func otherHotSet(req *pb.JoinRequest, spec *pb.JobSpec) error {
	theirs, ours := string(req.HotSet), string(spec.HotSet)
	if what, ok := strings.CutPrefix(ours, roundsMark); ok {
		if wants, ok := strings.CutPrefix(theirs, roundsMark); ok {
			return status.Errorf(codes.FailedPrecondition, "worker %d is for %q, job %d for %q: start all workers with the same settings",
				req.Sender, wants, req.Job, what)
		}
		return status.Errorf(codes.FailedPrecondition, "job %d is for %q, without a hot set: give worker %d the number of its own job",
			req.Job, what, req.Sender)
	}
	return status.Errorf(codes.FailedPrecondition, "worker %d's hot set differs from job %d's: copy the server's hot-set file to the worker",
		req.Sender, req.Job)
}
