// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// said passes on that something was written to a log.
type said chan string

func (s said) Write(line []byte) (int, error) {
	select {
	case s <- string(line):
	default:
	}
	return len(line), nil
}

// A switch that was restarted does not know the job. A worker that comes before the server has
// noticed that waits until it has, and joins without an aggregator; but not for ever, as it may be
// another switch.
func TestJoinAtAForgetfulSwitch(t *testing.T) {
	for _, notices := range []bool{true, false} {
		t.Run(map[bool]string{true: "noticed", false: "never noticed"}[notices], func(t *testing.T) {
			t.Parallel()
			s := startServices(t, func(c *ParameterServerConfig) { c.KeepLog, c.Workers = true, []uint16{1} })
			s.join.KeepsLog = true
			conn, err := access.Dial(t.Context(), access.TheSwitch(), s.join.Aggregator, access.Security{}, time.Minute, quiet)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := pb.NewAggregatorClient(conn).RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}); err != nil {
				t.Fatal(err)
			}
			log := make(said, 1)
			s.join.Log = slog.New(slog.NewTextHandler(log, nil))
			type joined struct {
				m   *Membership
				err error
			}
			done := make(chan joined, 1)
			go func() {
				m, err := Join(t.Context(), s.join)
				done <- joined{m, err}
			}()
			if line := <-log; !strings.Contains(line, "it joins again") || !strings.Contains(line, "no job 5") {
				t.Errorf("it says %s", line)
			}
			if notices {
				mustFence(t, s.service)
			}
			switch got := <-done; {
			case notices && got.err != nil:
				t.Errorf("it does not join: %v", got.err)
			case notices:
				if !got.m.NoAggregator {
					t.Error("it has an aggregator")
				}
				got.m.Leave()
			case !errors.Is(got.err, errForgotten) || !strings.Contains(got.err.Error(), "no job 5"):
				t.Errorf("it gets %v", got.err)
			}
		})
	}
}
