// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

func (w *worker) suspend(t *testing.T) error {
	_, err := w.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: w.id, Token: w.member.GetToken(), Back: true})
	return err
}

// meet ends a step of two workers, and returns the second one's error.
func meet(t *testing.T, one, two *worker, step uint64) error {
	t.Helper()
	first := make(chan error, 1)
	go func() { first <- one.barrier(t, step) }()
	second := make(chan error, 1)
	go func() { second <- two.barrier(t, step) }()
	select {
	case err := <-first:
		if err != nil {
			t.Errorf("step %d: worker %d: %v", step, one.id, err)
		}
	case <-time.After(time.Minute): // of virtual time
		t.Fatalf("step %d: worker %d waits for ever", step, one.id)
	}
	return <-second
}

// However a worker of an asynchronous job leaves and comes back, the barrier tells it the step at
// which it meets the others, which may wait for it. What it did in its earlier admission does not
// count.
func TestBarriersAfterAReturn(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, w *worker){
		"it leaves":    func(t *testing.T, w *worker) { _ = w.leave(t) },
		"it vanishes":  func(_ *testing.T, w *worker) { w.host.Vanish(); time.Sleep(DefaultGrace + time.Second) },
		"it restarts":  func(_ *testing.T, w *worker) { w.host.Vanish() },
		"for a moment": func(t *testing.T, w *worker) { _ = w.suspend(t) },
		"for a long time": func(t *testing.T, w *worker) {
			_ = w.suspend(t)
			time.Sleep(10 * DefaultRejoin)
		},
	} {
		for _, waits := range []string{"", "the other", "it"} { // at the barrier
			t.Run(name+" "+waits, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := startServer(t, func(c *ParameterServerConfig) {
						c.FirstStep = func(sender uint16) uint64 { return 10 * uint64(sender) } // as workers report it
					})
					ended := s.waits(t)
					one, two := s.joined(t)
					step := one.member.GetNextStep()
					if step != 20 || two.member.GetNextStep() != step {
						t.Fatalf("the first steps are %d and %d", step, two.member.GetNextStep())
					}
					for range 2 {
						if err := meet(t, one, two, step); err != nil {
							t.Fatal(err)
						}
						step++
					}
					other := make(chan error, 1)
					switch waits {
					case "the other":
						go func() { other <- one.barrier(t, step) }()
					case "it":
						w := *two
						go func() { _ = w.barrier(t, step) }()
					}
					synctest.Wait()
					leave(t, two)
					synctest.Wait()
					two = s.worker(t, 2)
					if err := two.join(t); err != nil {
						t.Fatal(err)
					}
					if two.member.GetNextStep() != step {
						t.Errorf("it is to continue with step %d, want %d", two.member.GetNextStep(), step)
					}
					if waits == "the other" {
						if err := errors.Join(two.barrier(t, step), <-other); err != nil {
							t.Error(err)
						}
						step++
					}
					if err := meet(t, one, two, step); err != nil {
						t.Error(err)
					}
					if len(ended) != 0 {
						t.Errorf("the job has ended: %v", <-ended)
					}
					want := []uint64{20, 21, 22}
					if waits == "the other" {
						want = append(want, 23)
					}
					if !slices.Equal(s.commits, want) {
						t.Errorf("commits %v, want %v", s.commits, want)
					}
					if err := errors.Join(one.done(t), two.done(t), <-ended); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// A worker that comes back while the step that it has ended is being committed begins with the next
// one.
func TestReturnDuringACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		commits, end := make(chan uint64, 4), make(chan error)
		s := startServer(t, func(c *ParameterServerConfig) {
			c.Commit = func(_ context.Context, step uint64) error {
				commits <- step
				return <-end
			}
		})
		one, two := s.joined(t)
		first := make(chan error, 1)
		go func() { first <- one.barrier(t, 0) }()
		w := *two
		go func() { _ = w.barrier(t, 0) }()
		<-commits
		if err := two.suspend(t); err != nil {
			t.Fatal(err)
		}
		joined := make(chan error, 1)
		two = s.worker(t, 2)
		go func() { joined <- two.join(t) }()
		synctest.Wait()
		end <- nil
		if err := errors.Join(<-joined, <-first); err != nil {
			t.Fatal(err)
		}
		if two.member.GetNextStep() != 1 {
			t.Errorf("it is to continue with step %d", two.member.GetNextStep())
		}
		go func() { first <- one.barrier(t, 1) }()
		second := make(chan error, 1)
		go func() { second <- two.barrier(t, 1) }()
		<-commits
		end <- nil
		if err := errors.Join(<-first, <-second); err != nil {
			t.Error(err)
		}
	})
}

// A worker that leaves for a while gets the answer when what it pushed is applied. If that fails,
// it is told, and has left.
func TestLeavingForAWhileWaits(t *testing.T) {
	fails := errors.New("no harvest")
	var away []uint16
	s := startServer(t, func(c *ParameterServerConfig) {
		c.Away = func(_ context.Context, sender uint16) error {
			if away = append(away, sender); len(away) == 1 {
				return fails
			}
			return nil
		}
	})
	one, _ := s.joined(t)
	wants(t, "leaving", one.suspend(t), codes.FailedPrecondition, fails.Error())
	wants(t, "a call after it", one.tear(t, 0), codes.PermissionDenied, "its admission has ended")
	if err := errors.Join(one.join(t), one.suspend(t), one.join(t)); err != nil {
		t.Error(err)
	}
	if len(s.lost) != 0 {
		t.Errorf("lost %v", s.lost)
	}
	if !slices.Equal(away, []uint16{1, 1}) {
		t.Errorf("away: %v", away)
	}
}

// What a worker reported of its frames at the end of a step counts no more when it has left.
func TestDepartureTakesBackTheReport(t *testing.T) {
	b := barrierOf([]uint16{1, 2}, 0, func(uint64) error { return nil })
	for worker := range uint16(2) {
		if _, _, err := b.arriveWorker(1, 0, wish{epoch: worker, hot: &HotFrames{}}); err != nil {
			t.Fatal(err)
		}
	}
	b.departWorker(2)
	if len(b.round.hot) != 2 || len(b.arrived) != 1 {
		t.Errorf("another has left: hot %v, arrived %v", b.round.hot, b.arrived)
	}
	b.departWorker(1)
	if len(b.round.hot) != 0 || len(b.arrived) != 0 {
		t.Errorf("hot %v, arrived %v", b.round.hot, b.arrived)
	}
}

// A membership that is suspended is neither lost nor finished. Servers count steps each for itself:
// a membership passes the barriers of all of them with one number.
func TestSuspendedMembership(t *testing.T) {
	s := startServices(t, func(c *ParameterServerConfig) {
		c.Workers = []uint16{1}
		c.FirstStep = func(uint16) uint64 { return 4 }
	})
	var commits [2][]uint64
	service := NewParameterServer(t.Context(), ParameterServerConfig{
		Job: 5, Port: 19522, Dimension: 1, HotSet: hotSet, Workers: []uint16{1}, Members: &roll{}, Log: quiet,
		Agree: map[string]string{IndexField: "1"}, FirstStep: func(uint16) uint64 { return 7 },
		Commit: func(_ context.Context, step uint64) error { commits[1] = append(commits[1], step); return nil },
	})
	t.Cleanup(service.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := access.NewServer(access.Security{})
	pb.RegisterParameterServerServer(server, service)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	s.join.MoreServers = []netip.AddrPort{listener.Addr().(*net.TCPAddr).AddrPort()}
	for life := range uint64(2) {
		m, err := Join(t.Context(), s.join)
		if err != nil {
			t.Fatal(err)
		}
		if want := 4 + 2*life; m.NextStep != want {
			t.Errorf("life %d begins with step %d, want %d", life, m.NextStep, want)
		}
		for step := range uint64(2) {
			if err := m.Barrier(t.Context(), m.NextStep+step); err != nil {
				t.Error(err)
			}
		}
		m.LeaveAs(Departure{Back: true})
		if at, here := s.senders(t); at != 0 || here != 0 {
			t.Errorf("%d and %d senders are left", at, here)
		}
	}
	if !slices.Equal(commits[1], []uint64{7, 8, 9, 10}) {
		t.Errorf("the second server has committed %v", commits[1])
	}
	if got := service.barrier.unfinishedWorkers(); !slices.Equal(got, []uint16{1}) || service.barrier.failureOf() != nil {
		t.Errorf("unfinished %v, failure %v", got, service.barrier.failureOf())
	}
}

// A server that does not know the next step of its barriers counts from the first one.
func TestNextStepOfAnOlderServer(t *testing.T) {
	step := uint64(0)
	for _, c := range []struct {
		joined *pb.Membership
		want   uint64
	}{{&pb.Membership{FirstStep: 7}, 7}, {&pb.Membership{FirstStep: 7, NextStep: &step}, 0}} {
		if got := nextStep(c.joined); got != c.want {
			t.Errorf("%v: step %d, want %d", c.joined, got, c.want)
		}
	}
}

// What a worker has reported at the end of a step ends with its admission, however that ends: the
// step waits for the next admission, whose pushes belong to it. A worker that comes back within the
// grace period has the same admission, and has arrived.
func TestArrivalEndsWithTheAdmission(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *worker){
		"leaves": func(t *testing.T, w *worker) {
			if err := w.leave(t); err != nil {
				t.Fatal(err)
			}
		},
		"leaves, and may come back": func(t *testing.T, w *worker) {
			if err := w.suspend(t); err != nil {
				t.Fatal(err)
			}
		},
		"vanishes": func(_ *testing.T, w *worker) {
			w.host.Vanish()
			time.Sleep(DefaultGrace)
		},
		"is restarted": func(_ *testing.T, w *worker) { w.host.Vanish() }, // its successor ends the admission
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServer(t)
				one, two := s.joined(t)
				first := *one
				go func() { _ = first.barrier(t, 0) }()
				synctest.Wait()
				end(t, one)
				synctest.Wait()
				again := s.worker(t, 1)
				if name == "is restarted" {
					if err := again.join(t); err != nil {
						t.Fatal(err)
					}
				}
				over := make(chan error, 2)
				go func() { over <- two.barrier(t, 0) }()
				synctest.Wait()
				if len(over) > 0 {
					t.Fatalf("the step has ended without worker 1: %v", <-over)
				}
				if name != "is restarted" {
					if err := again.join(t); err != nil {
						t.Fatal(err)
					}
				}
				if next := again.member.GetNextStep(); next != 0 {
					t.Errorf("it is to continue with step %d", next)
				}
				go func() { over <- again.barrier(t, 0) }()
				if err := errors.Join(<-over, <-over); err != nil {
					t.Error(err)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				if !slices.Equal(s.commits, []uint64{0}) {
					t.Errorf("commits of %v", s.commits)
				}
			})
		})
	}
}
