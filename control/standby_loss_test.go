// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// What is lost with a worker and an aggregator is told of the generation in which that was, and not
// of those that follow it.
func TestLossIsOfOneGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log notes
		s := startServer(t, func(cfg *ParameterServerConfig) { cfg.KeepLog, cfg.Log = true, log.Logger() })
		one, two := s.joinedWithLogs(t)
		s.service.Applied([]aggregator.Mark{{Sender: 1, Epoch: 3, Newest: 9}, {Sender: 2, Epoch: 4, Newest: 9}})
		one.host.Vanish()
		time.Sleep(DefaultGrace + time.Second)
		told := func(when string) {
			t.Helper()
			if n := strings.Count(log.String(), "the aggregator and a worker were lost together"); n != 1 {
				t.Errorf("%s it was told %d times, want 1:\n%s", when, n, log.String())
			}
		}
		mustFence(t, s.service)
		told("after the first generation")
		_, err := two.Settle(t.Context(), &pb.SettleRequest{Job: 5, Sender: 2, Token: two.member.GetToken(), Instance: 77, Epoch: 4, Settled: true})
		if err != nil || !s.service.AllSettled() {
			t.Fatalf("the worker that is there has settled: %v", err)
		}
		s.service.Begin(78, 1)
		mustFence(t, s.service)
		told("after the second generation")
	})
}
