// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/testlog"
	"github.com/libra-ina/libra/wire"
)

// notes is a log that tests read.
type notes struct{ testlog.Log }

// has reports lines that are missing in the log: each is a list of parts.
func (n *notes) has(t *testing.T, lines ...[]string) {
	t.Helper()
	text := n.String()
	for _, parts := range lines {
		found := false
		for line := range strings.Lines(text) {
			found = found || contains(errors.New(line), parts...)
		}
		if !found {
			t.Errorf("no line with %q in\n%s", parts, text)
		}
	}
}

// The daemon's log has jobs, senders and their ends.
func TestAggregatorsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log notes
		plane := &failing{removeJob: errors.New("no memory to give back")}
		l := startAggregator(t, func(c *AggregatorConfig) {
			plane.Model, c.Plane, c.Log = c.Plane.(*aggregator.Model), plane, log.Logger()
		})
		job, err := CreateJob(t.Context(), l.client, spec(), 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		_, a, err := joinAs(t.Context(), l.client, joinRequest())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.model.RemoveSender(5, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := l.client.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: 1, Token: a.Token}); err != nil {
			t.Fatal(err)
		}
		for _, how := range []*pb.LeaveRequest{{Back: true}, {Unused: true}, {Reason: "no such file"}} {
			_, again, err := joinAs(t.Context(), l.client, joinRequest())
			if err != nil {
				t.Fatal(err)
			}
			how.Job, how.Sender, how.Token = 5, 1, again.Token
			if _, err := l.client.Leave(t.Context(), how); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(access.Outage + DefaultLease)
		synctest.Wait()
		plane.removeJob = nil
		l.create(t, spec())
		if _, err := l.service.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}); err != nil {
			t.Fatal(err)
		}
		if _, err := CreateJob(t.Context(), l.client, spec(), 0, quiet); err != nil {
			t.Fatal(err)
		}
		time.Sleep(access.Outage + DefaultLease)
		synctest.Wait()
		log.has(t,
			[]string{"job created", "job=5", fmt.Sprint("instance=", job.Instance), "owner=192.0.2.2:40000", fmt.Sprint("epoch=", job.Epoch), "mode=combine", "arithmetic=exact", "slots=100", "senders=64"},
			[]string{"level=INFO", "worker joined", "job=5", "worker=1", "address=192.0.2.7", fmt.Sprint("epoch=", a.Epoch)},
			[]string{"level=INFO", `"worker left" `, "job=5", "worker=1", "address=192.0.2.7"},
			[]string{"level=INFO", "worker left, and may come back", "job=5", "worker=1"},
			[]string{"level=INFO", "worker left before it had sent anything", "job=5", "worker=1"},
			[]string{"level=WARN", "worker left before it had finished", "job=5", "worker=1", "no such file"},
			[]string{"sender connected", "job=5", "sender=1", "address=192.0.2.7", fmt.Sprint("epoch=", a.Epoch)},
			[]string{"cannot withdraw a sender", "job=5", "sender=1", "no such sender"},
			[]string{"cannot remove a job whose lease has ended", "job=5", "no memory to give back"},
			[]string{"job removed", "job=5", "harvests=0", "operator asked"},
			[]string{"job removed", "was not connected for 5s"},
		)
	})
}

func TestServersLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log notes
		s := startServer(t, func(c *ParameterServerConfig) { c.Log = log.Logger() })
		one, _ := s.joined(t)
		epoch := one.member.Epoch
		if err := one.leave(t); err != nil {
			t.Fatal(err)
		}
		if err := one.join(t); err != nil {
			t.Fatal(err)
		}
		log.has(t,
			[]string{"worker connected", "worker=1", "address=192.0.2.11", fmt.Sprint("epoch=", epoch)},
			[]string{"lost a worker", "worker=1", "left before it had finished"},
			[]string{"worker is back", "worker=1", "address=192.0.2.11"},
		)
	})
}

// A server waits for its workers without limit, and logs once which workers it waits for.
func TestServerNamesMissingWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log notes
		s := startServer(t, func(c *ParameterServerConfig) { c.Log = log.Logger() })
		result := s.waits(t)
		expect := func(after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			var got []string
			for line := range strings.Lines(log.String()) {
				if _, workers, ok := strings.Cut(line, `msg="waiting for workers to join" workers=`); ok {
					got = append(got, strings.TrimSpace(workers))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("waits for %q, want %q", got, want)
			}
		}
		expect(missingEvery - time.Millisecond)
		expect(time.Hour, `"[1 2]"`)
		one, two := s.worker(t, 1), s.worker(t, 2)
		if err := one.join(t); err != nil {
			t.Fatal(err)
		}
		expect(time.Hour, `"[1 2]"`, `[2]`)
		if err := two.join(t); err != nil {
			t.Fatal(err)
		}
		expect(time.Hour, `"[1 2]"`, `[2]`)
		if err := one.leave(t); err != nil { // lost, and may rejoin
			t.Fatal(err)
		}
		expect(missingEvery, `"[1 2]"`, `[2]`, `[1]`)
		if err := errors.Join(one.join(t), one.done(t), one.leave(t)); err != nil {
			t.Fatal(err)
		}
		expect(missingEvery, `"[1 2]"`, `[2]`, `[1]`) // it has finished
		if err := errors.Join(two.done(t), <-result); err != nil {
			t.Error(err)
		}
	})
}

// The data plane gets the servers' addresses, and a sender's is admitted.
func TestReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reached [][6]byte
		l := startAggregator(t, func(c *AggregatorConfig) {
			c.JobMemory = func(n int) uint64 { return 2*uint64(n) + 2 } // two banks
			c.Reach = func(job uint16, servers [][6]byte) {
				reached = append(reached, servers...)
				if job != 5 {
					t.Errorf("job %d", job)
				}
			}
		})
		s := spec()
		s.ServerMacs = [][]byte{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 3}}
		l.create(t, s)
		req := joinRequest()
		req.Mac, req.Ip = []byte{2, 0, 0, 0, 0, 2}, netip.AddrFrom16(workerIP.As16()).AsSlice()
		if _, _, err := joinAs(t.Context(), l.client, req); err != nil {
			t.Fatal(err)
		}
		if want := [][6]byte{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 3}}; !reflect.DeepEqual(reached, want) {
			t.Errorf("reached %v, want %v", reached, want)
		}
		if m := l.service.jobs[5].roster.members[1]; m.MAC != [6]byte{2, 0, 0, 0, 0, 2} || m.IP != workerIP {
			t.Errorf("admitted as %v", m.SenderConfig)
		}
		if st := l.stats(t); st.MemoryBytes != 202 || st.Jobs[0].MemoryBytes != 202 {
			t.Errorf("memory %v", st)
		}
	})
}

// Pings of either side do not close a connection that is idle for long.
func TestIdleConnectionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		l.create(t, spec())
		time.Sleep(time.Hour)
		l.stats(t)
		if n := l.host.Connections(); n != 1 {
			t.Errorf("%d connections in an hour", n)
		}
	})
}

// Each refusal of a data plane has its code.
func TestPlaneErrors(t *testing.T) {
	for err, want := range map[error]codes.Code{
		aggregator.ErrConfig: codes.InvalidArgument, aggregator.ErrUnsupported: codes.Unimplemented, aggregator.ErrMode: codes.FailedPrecondition,
		aggregator.ErrTooManySlots: codes.ResourceExhausted, aggregator.ErrTooManySenders: codes.ResourceExhausted,
		aggregator.ErrJobExists: codes.AlreadyExists, aggregator.ErrSenderExists: codes.AlreadyExists,
		aggregator.ErrNoJob: codes.NotFound, aggregator.ErrNoSender: codes.NotFound,
		aggregator.ErrBusy: codes.Unavailable, aggregator.ErrClosed: codes.Aborted, aggregator.ErrBankNotFrozen: codes.Internal,
	} {
		wants(t, "refusal", planeError(fmt.Errorf("job 5: %w", err)), want, "job 5", err.Error())
	}
}

// Every counter has its name.
func TestCounterNames(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{"BadChecksum": "bad_checksum", "PartialChecksum": "partial_checksum", "OutOfBounds": "out_of_bounds",
		"UnsentAnswers": "unsent_answers", "UnsentRedirects": "unsent_redirects"}
	check := func(counters reflect.Value, named func() map[string]uint64) {
		want := map[string]uint64{}
		for i := range counters.NumField() {
			field := counters.Type().Field(i).Name
			if field == "Refused" {
				continue
			}
			name, ok := names[field]
			if !ok {
				name = strings.ToLower(field)
			}
			want[name] = uint64(i + 1)
			if !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("docs/operations.md does not explain %s", name)
			}
			counters.Field(i).SetUint(uint64(i + 1))
		}
		refused := counters.FieldByName("Refused")
		for code := range refused.Len() {
			if code > 1 { // 0 is none, and 1 does not occur here
				refused.Index(code).SetUint(uint64(100 + code))
				want["refused_"+strings.ReplaceAll(wire.Code(code).String(), " ", "_")] = uint64(100 + code)
			}
		}
		if got := named(); !reflect.DeepEqual(got, want) {
			t.Errorf("counters %v, want %v", got, want)
		}
	}
	var global aggregator.Counters
	check(reflect.ValueOf(&global).Elem(), func() map[string]uint64 { return globalCounters(&global) })
	var job aggregator.JobCounters
	check(reflect.ValueOf(&job).Elem(), func() map[string]uint64 { return jobCounters(&job) })
}

// Names in messages are those of the planes, in both directions; others are unknown.
func TestModesAndArithmetics(t *testing.T) {
	for message, name := range pb.Mode_name {
		m, known := ModeOf(pb.Mode(message))
		if known != (message != 0) || known && "MODE_"+strings.ToUpper(m.String()) != name {
			t.Errorf("%s is %v, %v", name, m, known)
		}
	}
	for message, name := range pb.Arithmetic_name {
		a, known := ArithmeticOf(pb.Arithmetic(message))
		if known != (message != 0) || known && "ARITHMETIC_"+strings.ToUpper(a.String()) != name {
			t.Errorf("%s is %v, %v", name, a, known)
		}
		if known && ArithmeticMessage(a) != pb.Arithmetic(message) {
			t.Errorf("%v becomes %v", a, ArithmeticMessage(a))
		}
	}
	if m := ArithmeticMessage(99); m != pb.Arithmetic_ARITHMETIC_UNSPECIFIED {
		t.Errorf("an unknown arithmetic becomes %v", m)
	}
}

// While Dial waits, it logs once for what; and it ends with its context.
func TestDialWaits(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	var log notes
	gone := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	log2 := log.Logger()
	time.AfterFunc(1500*time.Millisecond, func() { cancel(gone) })
	_, err = access.Dial(ctx, access.TheSwitch(), addr, access.Security{}, time.Minute, log2)
	if !errors.Is(err, gone) || !contains(err, "switch daemon at "+addr.String()) {
		t.Errorf("got %v", err)
	}
	log.has(t, []string{"waiting for the switch daemon", "control=" + addr.String(), "at_most=1m0s"})
}
