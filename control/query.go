// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Query returns the statistics of a control service of either kind: one of the results is nil.
func Query(ctx context.Context, conn grpc.ClientConnInterface) (*pb.AggregatorStats, *pb.ServerStats, error) {
	aggregator, err := pb.NewAggregatorClient(conn).Stats(ctx, &pb.StatsRequest{})
	if err == nil {
		return aggregator, nil, nil
	}
	if status.Code(err) != codes.Unimplemented {
		return nil, nil, access.CallError("control service", "statistics", err)
	}
	server, err := pb.NewParameterServerClient(conn).Stats(ctx, &pb.StatsRequest{})
	return nil, server, access.CallError("parameter server", "statistics", err)
}
