// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// once is a stream with one message, which then breaks.
type once struct {
	grpc.ServerStreamingClient[time.Duration]
	message *time.Duration
}

func (s *once) Recv() (*time.Duration, error) {
	if m := s.message; m != nil {
		s.message = nil
		return m, nil
	}
	return nil, status.Error(codes.Unavailable, "broken")
}

// The last message of a service, not the first, sets how long it may be away.
func TestStayHasTheNewestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		graces := []time.Duration{time.Minute, 10 * time.Second}
		open := func(context.Context, *time.Duration) (grpc.ServerStreamingClient[time.Duration], error) {
			if len(graces) == 0 {
				return nil, status.Error(codes.Unavailable, "away")
			}
			s := &once{message: &graces[0]}
			graces = graces[1:]
			return s, nil
		}
		begun, lost := time.Now(), make(chan error, 1)
		first, err := Stay(t.Context(), open, func(grace *time.Duration) time.Duration { return *grace }, nil, func(err error) { lost <- err })
		if err != nil || *first != time.Minute {
			t.Fatal(first, err)
		}
		if err := <-lost; !contains(err, "away") {
			t.Error(err)
		}
		if took := time.Since(begun); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("given up after %v, want the newest grace of 10s", took)
		}
	})
}

// A request that arrives after a newer one requests nothing more, and reverts nothing.
func TestRequestsOfHarvestsOnlyGrow(t *testing.T) {
	h := &harvestSession{asked: 5}
	for _, now := range []struct{ request, asked uint64 }{{3, 5}, {6, 6}, {6, 6}} {
		if err := h.takeRequest(nowRequest(now.request)); err != nil || h.asked != now.asked {
			t.Errorf("after request %d, %d is asked for, want %d; %v", now.request, h.asked, now.asked, err)
		}
	}
}

// An error of a call that is not an answer of the aggregator has its own text, and no error is nil.
func TestLostExplainsAnswersOnly(t *testing.T) {
	job := &Owned{ID: 5}
	if err := job.Lost("hold", nil); err != nil {
		t.Error(err)
	}
	if err := job.Lost("hold", io.EOF); !errors.Is(err, io.EOF) || err.Error() != io.EOF.Error() {
		t.Errorf("the reason became %v", err)
	}
	if err := job.Lost("hold", status.Error(codes.Aborted, "job 5 was removed")); !contains(err, "lost job 5: switch daemon: hold: job 5 was removed") {
		t.Error(err)
	}
}

func nowRequest(n uint64) *pb.HarvestRequest {
	return &pb.HarvestRequest{What: &pb.HarvestRequest_Now{Now: n}}
}
