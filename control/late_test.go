// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// The log names the workers for which a step waits, once, and not those of a step that goes on.
func TestLogNamesLateWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log notes
		s := startServer(t, func(c *ParameterServerConfig) { c.Sync, c.Log = true, log.Logger() })
		_ = s.waits(t)
		one, two := s.joined(t)
		met := make(chan error, 1)
		go func() { met <- one.barrier(t, 0) }()
		time.Sleep(lateAfter - time.Second)
		if strings.Contains(log.String(), "waiting for workers at the end") {
			t.Errorf("too early:\n%s", log.String())
		}
		time.Sleep(time.Minute)
		const line = "waiting for workers at the end of a step"
		if n := strings.Count(log.String(), line); n != 1 || !strings.Contains(log.String(), "step=0 workers=[2]") {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
		if err := two.barrier(t, 0); err != nil || <-met != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // both train
		go func() { met <- two.barrier(t, 1) }()
		time.Sleep(time.Minute)
		if n := strings.Count(log.String(), line); n != 2 || !strings.Contains(log.String(), "step=1 workers=[1]") {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
		if err := one.barrier(t, 1); err != nil || <-met != nil {
			t.Fatal(err)
		}
		go func() { met <- two.barrier(t, 2) }() // before the next look for late workers
		time.Sleep(time.Minute)
		if n := strings.Count(log.String(), line); n != 3 || !strings.Contains(log.String(), "step=2 workers=[1]") {
			t.Errorf("the same worker is late again, %d lines:\n%s", n, log.String())
		}
		if err := one.barrier(t, 2); err != nil || <-met != nil {
			t.Fatal(err)
		}
	})
}

// The log names the workers that have not joined once each time that they are missing, and so also
// those that have left and are to come back.
func TestLogNamesMissingWorkersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log notes
		s := startServer(t, func(c *ParameterServerConfig) { c.Log = log.Logger() })
		_ = s.waits(t)
		one, two := s.worker(t, 1), s.worker(t, 2)
		if err := one.join(t); err != nil {
			t.Fatal(err)
		}
		for times := 1; times <= 3; times++ {
			time.Sleep(time.Minute)
			if n := strings.Count(log.String(), `msg="waiting for workers to join" workers=[2]`); n != times {
				t.Errorf("missing %d times, %d lines:\n%s", times, n, log.String())
			}
			if err := two.join(t); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * missingEvery)
			if _, err := two.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: two.id, Token: two.member.GetToken(), Back: true}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The switch's log has senders that are lost, and why.
func TestSwitchLogsLostWorkers(t *testing.T) {
	for name, test := range map[string]struct {
		again  bool
		reason string
	}{"vanished": {false, "it was not connected for 3s"}, "restarted": {true, "it was restarted"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log notes
				l := startAggregator(t, func(c *AggregatorConfig) { c.Log = log.Logger() })
				l.create(t, spec())
				host := l.dial(t, access.Security{}, workerIP.String())
				if _, _, err := joinAs(t.Context(), pb.NewAggregatorClient(host), joinRequest()); err != nil {
					t.Fatal(err)
				}
				host.Vanish()
				synctest.Wait()
				if test.again {
					l.join(t)
				}
				time.Sleep(DefaultGrace)
				synctest.Wait()
				log.has(t, []string{"level=WARN", "lost a worker", "job=5", "worker=1", "address=192.0.2.7", test.reason})
			})
		})
	}
}
