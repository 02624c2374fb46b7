// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// A service without TLS, and a client of it.
func Example() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := access.NewServer(access.Security{})
	pb.RegisterAggregatorServer(server, pb.UnimplementedAggregatorServer{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	ctx, addr := context.Background(), listener.Addr().(*net.TCPAddr).AddrPort()
	conn, err := access.Dial(ctx, access.TheSwitch(), addr, access.Security{}, time.Minute, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	_, err = pb.NewAggregatorClient(conn).Stats(ctx, &pb.StatsRequest{})
	fmt.Println(access.CallError(access.SwitchDaemon, "statistics", err))
	// Output: switch daemon: statistics: method Stats not implemented
}
