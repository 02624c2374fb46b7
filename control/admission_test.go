// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
	"github.com/libra-ina/libra/wire"
)

// taken reports whether the data plane accepts a frame of sender 1.
func (l *libras) taken(t *testing.T, epoch uint16, seq uint32, port uint16) bool {
	t.Helper()
	payload, reply := make([]byte, wire.HotLen(1)), make([]byte, aggregator.MaxReplyPayload)
	wire.Header{Type: wire.TypeHot, Flags: wire.FlagDense, Job: 5, Sender: 1, Epoch: epoch, Seq: seq}.Put(payload)
	s := wire.StripeAt(payload, 0)
	s.SetMask(1)
	s.SetSlot(0, 0)
	s.SetValue(0, 1)
	_, n := l.model.ProcessPayload(netip.AddrPortFrom(workerIP, port), payload, reply)
	h, err := wire.ParseHeader(reply[:n])
	if err != nil {
		t.Fatal(err)
	}
	return h.Type == wire.TypeAck
}

// A sender gets the aggregator's configuration, and its frames are accepted from the port that it
// has named.
func TestAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t, func(c *AggregatorConfig) { c.Grace = 1500 * time.Millisecond })
		job := l.create(t, spec())
		req := joinRequest()
		req.Port = 4711
		_, a, err := joinAs(t.Context(), l.client, req)
		if err != nil {
			t.Fatal(err)
		}
		if a.Instance != job.Instance || a.Epoch == job.Epoch || a.Stripes != 10 || !a.Dense || a.Window != wire.DefaultWindow || a.GraceMs != 1500 || len(a.Token) != 16 {
			t.Errorf("admission %v", a)
		}
		if !l.taken(t, uint16(a.Epoch), 1, 4711) || l.taken(t, uint16(a.Epoch), 2, 4712) {
			t.Error("the port is not that of the request")
		}
	})
}

// A sender whose connection breaks resumes its admission within the grace period, with its epoch
// and its filter.
func TestAdmissionIsResumed(t *testing.T) {
	for name, harm := range map[string]func(*client){"both halves": (*client).Break, "the client's half": (*client).HalfOpen} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := startAggregator(t)
				l.create(t, spec())
				host := l.dial(t, access.Security{}, workerIP.String())
				worker := pb.NewAggregatorClient(host)
				_, a, err := joinAs(t.Context(), worker, joinRequest())
				if err != nil {
					t.Fatal(err)
				}
				epoch := uint16(a.Epoch)
				l.push(t, epoch, 1, 0, 1)
				for range 3 {
					harm(host)
					synctest.Wait()
					time.Sleep(DefaultGrace - time.Millisecond)
					again := joinRequest()
					again.Token = a.Token
					_, b, err := joinAs(t.Context(), worker, again)
					if err != nil {
						t.Fatal(err)
					}
					if b.Epoch != a.Epoch || string(b.Token) != string(a.Token) {
						t.Errorf("resumed as %v, was %v", b, a)
					}
				}
				time.Sleep(time.Minute)
				l.push(t, epoch, 1, 0, 1) // a repetition
				c, err := l.model.SenderCounters(5, 1)
				if err != nil || c.Applied != 1 || c.Duplicates != 1 {
					t.Errorf("counters %v, %v: the filter is another", c, err)
				}
			})
		})
	}
}

// After the grace period the admission ends.
func TestAdmissionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		l.create(t, spec())
		host := l.dial(t, access.Security{}, workerIP.String())
		_, a, err := joinAs(t.Context(), pb.NewAggregatorClient(host), joinRequest())
		if err != nil {
			t.Fatal(err)
		}
		host.Break()
		synctest.Wait()
		time.Sleep(DefaultGrace - time.Millisecond)
		if !l.taken(t, uint16(a.Epoch), 1, wire.DefaultPort) {
			t.Error("frames are refused within the grace period")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if l.taken(t, uint16(a.Epoch), 2, wire.DefaultPort) || l.stats(t).Jobs[0].Senders != 0 {
			t.Error("frames are taken after the grace period")
		}
		again := joinRequest()
		again.Token = a.Token
		_, _, err = joinAs(t.Context(), l.client, again)
		wants(t, "too late", err, codes.PermissionDenied, "sender 1", "ended", "3s")
	})
}

// A machine that vanishes is noticed within twelve seconds.
func TestVanishedMachineIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		l.create(t, spec())
		host := l.dial(t, access.Security{}, workerIP.String())
		if _, _, err := joinAs(t.Context(), pb.NewAggregatorClient(host), joinRequest()); err != nil {
			t.Fatal(err)
		}
		host.StayAway()
		host.HalfOpen()
		synctest.Wait()
		_, _, err := joinAs(t.Context(), l.client, joinRequest())
		wants(t, "at once", err, codes.AlreadyExists, "worker 1", workerIP.String())
		time.Sleep(12*time.Second + DefaultGrace)
		synctest.Wait()
		if n := l.stats(t).Jobs[0].Senders; n != 0 {
			t.Errorf("%d senders after twelve seconds and the grace period", n)
		}
	})
}

// A restarted worker replaces its predecessor at once, with a new epoch: late frames of the
// predecessor are refused, and its own are added.
func TestRestartedSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		full := spec()
		full.Senders = 1 // the predecessor's place is its own
		l.create(t, full)
		former := l.dial(t, access.Security{}, workerIP.String())
		_, a, err := joinAs(t.Context(), pb.NewAggregatorClient(former), joinRequest())
		if err != nil {
			t.Fatal(err)
		}
		l.push(t, uint16(a.Epoch), 1, 0, 1)
		// While it runs, no other worker takes its place.
		worker := pb.NewAggregatorClient(l.dial(t, access.Security{}, workerIP.String()))
		_, _, err = joinAs(t.Context(), worker, joinRequest())
		wants(t, "beside the former", err, codes.AlreadyExists, "worker 1", "already", workerIP.String())
		former.Vanish()
		synctest.Wait()
		elsewhere := joinRequest()
		elsewhere.Ip = netip.MustParseAddr("192.0.2.8").AsSlice()
		_, _, err = joinAs(t.Context(), worker, elsewhere)
		wants(t, "from elsewhere", err, codes.AlreadyExists, "worker 1", "just now", workerIP.String(), "3s")

		_, b, err := joinAs(t.Context(), worker, joinRequest())
		if err != nil {
			t.Fatal(err)
		}
		if uint16(b.Epoch) != uint16(a.Epoch+1) || string(b.Token) == string(a.Token) {
			t.Errorf("the new admission is %v, the former was %v", b, a)
		}
		if l.taken(t, uint16(a.Epoch), 2, wire.DefaultPort) {
			t.Error("a late frame of the former self is added")
		}
		l.push(t, uint16(b.Epoch), 1, 0, 100)
		c, err := l.model.SenderCounters(5, 1)
		if err != nil || c.Applied != 1 || c.Duplicates != 0 {
			t.Errorf("counters %v, %v: want the new self's first frame added", c, err)
		}
		time.Sleep(time.Minute) // the end of the predecessor's grace period changes nothing
		l.push(t, uint16(b.Epoch), 2, 0, 100)
		resumed := joinRequest()
		resumed.Token = a.Token
		_, _, err = joinAs(t.Context(), l.client, resumed)
		wants(t, "the former self, if it was only asleep", err, codes.PermissionDenied, "restarted")
	})
}

// A sender that leaves is removed at once; leaving requires its token.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		l.create(t, spec())
		stream, a, err := joinAs(t.Context(), l.client, joinRequest())
		if err != nil {
			t.Fatal(err)
		}
		leave := func(req *pb.LeaveRequest) error {
			_, err := l.client.Leave(t.Context(), req)
			return err
		}
		wants(t, "without a token", leave(&pb.LeaveRequest{Job: 5, Sender: 1}), codes.PermissionDenied, "sender 1")
		wants(t, "with another", leave(&pb.LeaveRequest{Job: 5, Sender: 1, Token: make([]byte, 16)}), codes.PermissionDenied)
		wants(t, "of another sender", leave(&pb.LeaveRequest{Job: 5, Sender: 2, Token: a.Token}), codes.PermissionDenied)
		wants(t, "beyond 16 bits", leave(&pb.LeaveRequest{Job: 5, Sender: 1 + 1<<16, Token: a.Token}), codes.InvalidArgument, "65537")
		wants(t, "of another job", leave(&pb.LeaveRequest{Job: 6, Sender: 1, Token: a.Token}), codes.NotFound)
		if err := leave(&pb.LeaveRequest{Job: 5, Sender: 1, Token: a.Token}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err == nil {
			t.Error("its stream goes on")
		}
		if l.taken(t, uint16(a.Epoch), 1, wire.DefaultPort) {
			t.Error("its frames are taken")
		}
		wants(t, "twice", leave(&pb.LeaveRequest{Job: 5, Sender: 1, Token: a.Token}), codes.PermissionDenied)
		l.join(t) // its place is free
		time.Sleep(time.Minute)
		if n := l.stats(t).Jobs[0].Senders; n != 1 {
			t.Errorf("%d senders, want the one that joined", n)
		}
	})
}

// joining joins a worker and keeps it joined with [Stay].
func joining(ctx context.Context, client pb.AggregatorClient, lost func(error)) (*pb.Admission, error) {
	return Stay(ctx, func(ctx context.Context, newest *pb.Admission) (pb.Aggregator_JoinClient, error) {
		req := joinRequest()
		req.Token = newest.GetToken()
		return client.Join(ctx, req)
	}, func(a *pb.Admission) time.Duration { return time.Duration(a.GraceMs) * time.Millisecond }, nil, lost)
}

// Stay keeps an admission over broken connections, until it is withdrawn, or the service cannot be
// reached for the grace period.
func TestStay(t *testing.T) {
	for name, end := range map[string]struct {
		harm func(*libras, *client, *Owned)
		want string
		soon bool
	}{
		"job removed": {func(_ *libras, _ *client, job *Owned) { _ = job.Remove(context.Background()) }, "job 5 was removed", true},
		"unreachable": {func(_ *libras, host *client, _ *Owned) { host.Vanish() }, grpctest.ErrCut.Error(), false},
		"withdrawn": {func(l *libras, host *client, _ *Owned) {
			host.Vanish()
			synctest.Wait()
			time.Sleep(DefaultGrace - 500*time.Millisecond)
			host.ComeBack()
			j := l.service.jobs[5]
			j.roster.mu.Lock()
			j.roster.dropAdmission(j.roster.members[1], vanished)
			j.roster.mu.Unlock()
		}, "its admission has ended", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := startAggregator(t)
				job := l.create(t, spec())
				host := l.dial(t, access.Security{}, workerIP.String())
				lost := make(chan error, 2)
				a, err := joining(t.Context(), pb.NewAggregatorClient(host), func(err error) { lost <- err })
				if err != nil {
					t.Fatal(err)
				}
				for i := range 6 {
					if i%2 == 0 {
						host.Break()
					} else {
						host.HalfOpen()
					}
					time.Sleep(4 * DefaultGrace)
					l.push(t, uint16(a.Epoch), uint32(1+i), 0, 1)
				}
				if len(lost) != 0 {
					t.Fatalf("lost: %v", <-lost)
				}
				begun := time.Now()
				end.harm(l, host, job)
				if err := <-lost; !contains(err, end.want) {
					t.Errorf("lost because of %v, want %q", err, end.want)
				}
				took := time.Since(begun)
				if end.soon && took != 0 || !end.soon && (took < DefaultGrace-time.Second || took > DefaultGrace+longestDelay) {
					t.Errorf("it took %v to hear of it", took)
				}
				time.Sleep(time.Minute)
				if len(lost) != 0 {
					t.Error("it is told twice")
				}
			})
		})
	}
}

// listed is a stream of some messages, which ends with an error.
type listed struct {
	grpc.ClientStream
	messages []string
	end      func() error
}

func (s *listed) Recv() (*string, error) {
	if len(s.messages) == 0 {
		return nil, s.end()
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	return &m, nil
}

// All messages but the first of the first stream are passed on, also those with which others begin:
// they say what has changed while there was none. Each stream is opened with the newest of these.
func TestStayPassesMessagesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		streams := [][]string{{"a", "b"}, {"c", "d"}, {"e"}}
		var told, newest []string
		first, err := Stay(ctx, func(ctx context.Context, m *string) (grpc.ServerStreamingClient[string], error) {
			if m != nil {
				newest = append(newest, *m)
			}
			s := &listed{messages: streams[len(newest)], end: func() error { return status.Error(codes.Unavailable, "it broke") }}
			if len(newest)+1 == len(streams) {
				s.end = func() error {
					<-ctx.Done()
					return ctx.Err()
				}
			}
			return s, nil
		}, func(*string) time.Duration { return time.Minute }, func(m *string) { told = append(told, *m) }, func(err error) { t.Error(err) })
		if err != nil || *first != "a" {
			t.Fatal(first, err)
		}
		time.Sleep(time.Minute)
		end()
		synctest.Wait()
		if want := []string{"b", "c", "d", "e"}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		if want := []string{"a", "c"}; !slices.Equal(newest, want) {
			t.Errorf("opened with %v, want %v", newest, want)
		}
	})
}

// Stay ends without an error with its context, also while it tries to reconnect.
func TestStayEndsWithItsContext(t *testing.T) {
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := startAggregator(t)
			l.create(t, spec())
			host := l.dial(t, access.Security{}, workerIP.String())
			ctx, cancel := context.WithCancel(t.Context())
			if _, err := joining(ctx, pb.NewAggregatorClient(host), func(err error) { t.Errorf("lost: %v", err) }); err != nil {
				t.Fatal(err)
			}
			if down {
				host.Vanish()
				time.Sleep(time.Second)
			}
			cancel()
			time.Sleep(time.Minute)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t) // without a job
		_, err := joining(t.Context(), l.client, func(err error) { t.Errorf("lost: %v", err) })
		wants(t, "joining nothing", err, codes.NotFound)
		time.Sleep(time.Minute)
	})
}

// Repeat repeats only calls that a broken connection interrupts.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, calls := time.Now(), 0
		err := Repeat(t.Context(), func(context.Context) error {
			if calls++; calls < 4 {
				return errReplaced
			}
			return nil
		})
		if err != nil || calls != 4 || time.Since(begun) != 7*shortestDelay {
			t.Errorf("%d calls in %v: %v", calls, time.Since(begun), err)
		}
		calls = 0
		if err := Repeat(t.Context(), func(context.Context) error { calls++; return errStopping }); !errors.Is(err, errStopping) || calls != 1 {
			t.Errorf("%d calls: %v", calls, err)
		}
		gone := errors.New("the worker ends")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(10*time.Second, func() { cancel(gone) })
		begun, calls = time.Now(), 0
		if err := Repeat(ctx, func(context.Context) error { calls++; return errReplaced }); !errors.Is(err, gone) || time.Since(begun) != 10*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		// 50, 100, 200, 400, 800 ms, then every second.
		if calls != 5+9 {
			t.Errorf("%d calls in 10 seconds", calls)
		}
	})
}

// WhileTaken gives up after its limit, with the reason, and at once for another reason.
func TestWhileTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		l.create(t, spec())
		begun := time.Now()
		_, err := CreateJob(t.Context(), l.client, spec(), 10*time.Second, quiet)
		if took := time.Since(begun); took < 10*time.Second || took > 10*time.Second+longestDelay || !contains(err, "job 5 exists") {
			t.Errorf("after %v: %v", took, err)
		}
		begun = time.Now()
		bad := spec()
		bad.Slots = 0
		if _, err := CreateJob(t.Context(), l.client, bad, 10*time.Second, quiet); time.Since(begun) != 0 || !contains(err, "switch daemon: create job", "slots") {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := CreateJob(ctx, l.client, spec(), 10*time.Second, quiet); time.Since(begun) != time.Second || !errors.Is(err, context.Canceled) {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}
