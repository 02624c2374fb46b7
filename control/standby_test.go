// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Another generation may begin when every worker has said that it has settled. Workers are told
// where it is; calls of the generation before it stay refused, and those of workers that have not
// entered it count.
func TestAnotherGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, keepsLog5, func(c *ParameterServerConfig) { c.Aggregator = 2 })
		one, two := s.joinedWithLogs(t)
		if one.member.Aggregator != 2 {
			t.Errorf("the first generation is said to be at aggregator %d", one.member.Aggregator)
		}
		s.service.Applied([]aggregator.Mark{{Sender: 1, Epoch: 3, Newest: 9}, {Sender: 2, Epoch: 8}})
		mustFence(t, s.service)
		if s.service.AllSettled() {
			t.Error("all workers have settled, and none has asked for its mark")
		}
		for i, w := range []*worker{one, two} {
			if _, err := w.settle(t, 77, uint32(3+5*i)); err != nil {
				t.Fatal(err)
			}
			if s.service.AllSettled() {
				t.Error("all workers have settled, and one has only asked for its mark")
			}
			if _, err := w.Settle(t.Context(), &pb.SettleRequest{Job: 5, Sender: w.id, Token: w.member.GetToken(), Instance: 77,
				Settled: true}); err != nil {
				t.Fatal(err)
			}
		}
		if !s.service.AllSettled() {
			t.Error("not all workers have settled")
		}
		if used := s.service.UsedEpochs(); !slices.Equal(used, []uint32{0, 3, 8}) && !slices.Equal(used, []uint32{3, 8}) {
			t.Errorf("used epochs %v", used)
		}
		s.service.Begin(78, 1)
		for {
			m, err := one.stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if m.Instance == 78 {
				if m.Aggregator != 1 || m.Ended != 77 || m.Committed != nil {
					t.Errorf("a worker is told %+v", m)
				}
				break
			}
		}
		wants(t, "a call of the earlier generation", <-one.arrive(t, 77), codes.Aborted, "generation has ended")
		arrived := []chan error{one.arrive(t, 78), two.arrive(t, 0)} // one has entered
		for i, a := range arrived {
			if err := <-a; err != nil {
				t.Errorf("worker %d: %v", i+1, err)
			}
		}
		// The end of the second one concerns both.
		mustFence(t, s.service)
		if s.service.AllSettled() {
			t.Error("all workers have settled in the first generation, and this counts for the second")
		}
		_, err := one.settle(t, 77, 3)
		wants(t, "settling in the first generation", err, codes.FailedPrecondition, "has not ended")
	})
}

// No admission gets an epoch that the server has named, also at an aggregator that has begun anew.
func TestUsedEpochsAreNotUsed(t *testing.T) {
	l := startAggregator(t)
	next := l.service.nextEpoch(5)
	named := spec()
	named.UsedEpochs = []uint32{uint32(next), uint32(next + 1), uint32(next + 3)}
	job := l.create(t, named)
	if uint16(job.Epoch) != next+2 {
		t.Errorf("the job's epoch is %d, want %d", job.Epoch, next+2)
	}
	if epoch := l.join(t); epoch != next+4 {
		t.Errorf("an admission's epoch is %d, want %d", epoch, next+4)
	}
}
