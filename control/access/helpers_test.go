// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

var quiet = slog.New(slog.DiscardHandler)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// contains reports whether an error has all parts.
func contains(err error, parts ...string) bool {
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			return false
		}
	}
	return true
}

func security(a *grpctest.Authority, names ...string) Security {
	return must(LoadSecurity(a.Files(names...)))
}

// newNetwork starts a service on its own network.
func newNetwork(t *testing.T, sec Security, register func(*grpc.Server)) *grpctest.Network {
	t.Helper()
	s := NewServer(sec)
	register(s)
	return grpctest.Serve(t, s)
}

// empty is an aggregator without jobs.
type empty struct {
	pb.UnimplementedAggregatorServer
}

func (empty) RemoveJob(_ context.Context, req *pb.RemoveJobRequest) (*pb.RemoveJobResponse, error) {
	return nil, status.Errorf(codes.NotFound, "no job %d", req.Job)
}
