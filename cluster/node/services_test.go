// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

var errNoHarvest = errors.New("no harvest")

// harvests counts harvests, and fails while it is to.
type harvests struct {
	n   int
	err error
}

func (h *harvests) now(context.Context) error {
	h.n++
	return h.err
}

// newServices returns a server, and what its control service calls.
func newServices(t *testing.T, sync bool) (*server, *harvests, control.ParameterServerConfig) {
	t.Helper()
	s, h := newServer(t, sync), &harvests{}
	s.hot, s.evaluator = smallHotSet(t), &evaluator{}
	return s, h, s.serviceConfig(t.Context(), 2, h.now)
}

// push adds to the sums of key 90.
func (s *server) push(t *testing.T, grads ...float32) {
	t.Helper()
	err := s.loop.Do(t.Context(), func() {
		if err := s.store.Push([]uint64{90}, grads); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A step that ends at the service has what the aggregator holds of it, which is not asked if that
// is nothing. Without it the step does not end.
func TestStepsEndWithTheirHarvest(t *testing.T) {
	s, h, services := newServices(t, true)
	after := func(what string, harvests int, steps uint64) {
		t.Helper()
		if first := s.progress.firstStep(1); h.n != harvests || first != steps {
			t.Errorf("%s: %d harvests, want %d; step %d is due, want %d", what, h.n, harvests, first, steps)
		}
	}
	reduce := func(step uint64, quiet bool, want ...float32) {
		t.Helper()
		got, err := services.Reduce(t.Context(), step, quiet)
		if err != nil || !slices.Equal(got.Rows, want) || len(got.Keys) != len(want)/2 {
			t.Errorf("step %d has the sums %v, want %v; %v", step, got, want, err)
		}
	}
	s.push(t, 1, 2)
	reduce(0, false, 1, 2)
	after("sums", 1, 1)
	s.push(t, 3, 4)
	reduce(1, true, 3, 4)
	after("sums of a quiet step", 1, 2)
	s.push(t, 5, 6)
	if err := services.Drop(t.Context(), 2, false); err != nil {
		t.Error(err)
	}
	after("a step that is dropped", 2, 3)
	if err := services.Drop(t.Context(), 3, true); err != nil {
		t.Error(err)
	}
	after("a quiet step that is dropped", 2, 4)
	reduce(4, true)
	if err := services.Commit(t.Context(), 5); err != nil {
		t.Error(err)
	}
	after("a barrier", 3, 6)
	if s.result.Steps != 2 {
		t.Errorf("%d steps have changed something, want 2", s.result.Steps)
	}

	h.err = errNoHarvest
	_, err := services.Reduce(t.Context(), 6, false)
	for what, err := range map[string]error{"sums": err, "a step that is dropped": services.Drop(t.Context(), 6, false), "a barrier": services.Commit(t.Context(), 6)} {
		if !errors.Is(err, errNoHarvest) {
			t.Errorf("%s without a harvest: %v", what, err)
		}
	}
	after("no harvest", 6, 6)
	if err := services.Report(t.Context(), 1, &pb.ReportRequest{Steps: 99}); err != nil {
		t.Error(err)
	}
	after("a report behind a barrier", 6, 6)
}

// A worker that leaves to come back is told so when all that it was acknowledged is applied, not
// before; behind barriers only whole steps count. The server then writes a checkpoint.
func TestWorkerIsAwayWithItsHarvest(t *testing.T) {
	for sync, want := range map[bool]error{true: nil, false: errNoHarvest} {
		s, h, services := newServices(t, sync)
		if err := services.Away(t.Context(), 1); err != nil || (h.n == 0) != sync || (len(s.due) == 0) != sync {
			t.Errorf("sync %v: %v after %d harvests; %d checkpoints are due", sync, err, h.n, len(s.due))
		}
		h.err = errNoHarvest
		if err := services.Away(t.Context(), 1); !errors.Is(err, want) {
			t.Errorf("sync %v, without a harvest: %v, want %v", sync, err, want)
		}
	}
}

// Without barriers a report is answered when what it names is part of the weights, and what a lost
// worker was told belongs into the next checkpoint. There are no steps to end.
func TestReportsAndLossesWithoutBarriers(t *testing.T) {
	s, h, services := newServices(t, false)
	if services.Reduce != nil || services.Drop != nil || services.Give != nil || services.ReduceHere != nil {
		t.Error("an asynchronous job has sums of steps")
	}
	if err := services.Report(t.Context(), 1, &pb.ReportRequest{Steps: 8}); err != nil || h.n != 1 || s.progress.firstStep(1) != 8 {
		t.Errorf("%d harvests after a report, %d steps, %v", h.n, s.progress.firstStep(1), err)
	}
	if services.Lost(1); h.n != 2 || len(s.due) != 1 {
		t.Errorf("%d harvests after the loss of a worker, and %d checkpoints are due", h.n, len(s.due))
	}
	h.err = errNoHarvest
	if err := services.Report(t.Context(), 1, &pb.ReportRequest{Steps: 9}); !errors.Is(err, errNoHarvest) {
		t.Errorf("a report without a harvest: %v", err)
	}
}

// Several servers without barriers write their first checkpoints as soon as a worker reports: one
// that ends before the time has one to continue from, beside the others'. A single server needs
// none then. A worker that leaves for a while is in the next checkpoint.
func TestCheckpointsAreDueWhenWorkersReportAndLeave(t *testing.T) {
	for servers := 1; servers <= 2; servers++ {
		t.Run(fmt.Sprint(servers, " servers"), func(t *testing.T) {
			s, h, services := newServices(t, false)
			s.env.Config.Servers = make([]cluster.Server, servers)
			for steps := range uint64(2) {
				if err := services.Report(t.Context(), 1, &pb.ReportRequest{Steps: 1 + steps}); err != nil {
					t.Fatal(err)
				}
				due := len(s.due) == 1
				if due != (servers > 1 && steps == 0) {
					t.Errorf("after %d reports a checkpoint is due: %v", 1+steps, due)
				}
				if due {
					<-s.due
				}
			}
			if err := services.Away(t.Context(), 1); err != nil || h.n != 3 || len(s.due) != 1 {
				t.Errorf("after a worker has left for a while, %d harvests, and %d checkpoints are due; %v", h.n, len(s.due), err)
			}
		})
	}
}

// A worker that waits for a step in frames gets its sums, or is sent to the service, which knows
// the reason: the step was dropped, or a worker lost.
func TestWhoWaitsForFramesIsTold(t *testing.T) {
	s, h, services := newServices(t, true)
	const here = 3 // the step that ends as soon as the worker has come
	arrive := func(_, _ uint16, end wire.StepEnd) bool {
		if end.Step == here {
			services.ReduceHere(here, func(control.Sums, *control.DroppedError) {})
		}
		return true
	}
	if err := s.loop.Do(t.Context(), func() { s.arrive = arrive }); err != nil {
		t.Fatal(err)
	}
	from := netip.AddrPortFrom(s.env.Config.Workers[0].Address, s.env.Config.Port)
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.env.Config.Server.Address, s.env.Config.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := errors.Join(conn.SetReadDeadline(time.Now().Add(eventLimit)), s.loop.Admit(t.Context(), 1, from, 3)); err != nil {
		t.Fatal(err)
	}
	s.push(t, 1, 2)
	receives := func(step uint64, want wire.Type) {
		t.Helper()
		answer := make([]byte, 2000)
		n, err := conn.Read(answer)
		if h, bad := wire.ParseHeader(answer[:n]); err != nil || bad != nil || h.Type != want {
			t.Errorf("step %d: an answer of type %v, want %v; %v", step, h.Type, want, errors.Join(err, bad))
		}
	}
	for step, end := range []struct {
		call func(step uint64)
		want wire.Type
	}{
		{func(step uint64) { services.Give(step, control.Sums{Keys: []uint64{90}, Rows: []float32{1, 2}}, true) }, wire.TypeSums},
		{func(step uint64) { services.Give(step, control.Sums{Keys: []uint64{90}, Rows: []float32{1, 2}}, false) }, wire.TypeError},
		{func(uint64) { services.Lost(1) }, wire.TypeError},
		here: {func(uint64) {}, wire.TypeAck},
	} {
		frame := make([]byte, wire.StepLen)
		wire.Header{Type: wire.TypeStep, Job: s.env.Config.Job.ID, Sender: 1, Epoch: 3, Seq: wire.FirstSeq + uint32(step)}.Put(frame)
		wire.StepEnd{Step: uint64(step), Room: 10}.Put(frame)
		if _, err := conn.Write(frame); err != nil {
			t.Fatal(err)
		}
		if step == here {
			receives(here, wire.TypeSums)
		} else {
			receives(uint64(step), wire.TypeAck)
		}
		end.call(uint64(step))
		receives(uint64(step), end.want)
	}
	if h.n != 0 || len(s.due) != 1 {
		t.Errorf("%d harvests, and %d checkpoints are due after the loss of a worker", h.n, len(s.due))
	}
}

// Servers whose checkpoints must be of the same step tell workers of which steps theirs are.
func TestWhoTellsOfCheckpoints(t *testing.T) {
	for _, c := range []struct {
		servers int
		sync    bool
		file    string
		want    []uint64
	}{{2, true, "weights", []uint64{7}}, {2, true, "", nil}, {2, false, "weights", nil}, {1, true, "weights", nil}} {
		s := newServer(t, c.sync)
		s.hot = smallHotSet(t)
		s.progress.commitSteps(7)
		s.env.Config.Servers, s.env.Config.Server.Checkpoint = make([]cluster.Server, c.servers), c.file
		if got := s.serviceConfig(t.Context(), 2, nil).Checkpoints; !slices.Equal(got, c.want) {
			t.Errorf("%+v: checkpoints of the steps %v", c, got)
		}
	}
}
