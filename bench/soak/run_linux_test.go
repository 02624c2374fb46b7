// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"go.uber.org/goleak"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// Arguments that make the test binary another process. A mark follows, by which
// tests find the process.
const (
	childArgument  = "soak-child-process"
	parentArgument = "soak-parent-process"
)

func TestMain(m *testing.M) {
	bedtest.RunAs(childArgument, func(args []string) error { return RunChild(args[1:]) })
	bedtest.RunAs(parentArgument, func(args []string) error {
		_, err := Run(context.Background(), testConfig(args[0]))
		return err
	})
	// Under the race detector, the server's process would sleep for a second
	// before it ends.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// testConfig is a run that leaves a busy machine plenty of time.
func testConfig(mark string) Config {
	return Config{
		Duration: time.Minute, Bound: 2 * time.Minute,
		ChildCommand: []string{os.Args[0], childArgument, mark},
	}
}

func TestSoak(t *testing.T) {
	cfg := testConfig("soak")
	cfg.Duration = 10 * time.Second
	var last string
	cfg.Progress = func(_, _ int, what string) { last = what }
	report, err := Run(t.Context(), cfg)
	bedtest.SkipDenied(t, err)
	if err != nil {
		if report != nil {
			t.Log(strings.Join(report.Failures, "\n"))
		}
		t.Fatal(err)
	}
	if report.Rounds == 0 || len(report.Events) != 2*report.Rounds || !strings.HasPrefix(last, fmt.Sprintf("%d events, ", len(report.Events))) {
		t.Errorf("%d rounds, %d events, progress %q", report.Rounds, len(report.Events), last)
	}
	// Two ends of one link and one of the other, before the first round and
	// twice in each.
	if want := 3 + 6*report.Rounds; report.Accounts != want {
		t.Errorf("%d accounts in %d rounds, want %d", report.Accounts, report.Rounds, want)
	}
	for _, l := range report.Links {
		if l.Answered == 0 || l.RoundTrip.Count == 0 || l.Rate == 0 || l.Sent != l.Answered+uint64(l.Dropped)+uint64(l.Destroyed) {
			t.Errorf("%+v", *l)
		}
	}
	for _, e := range report.Events {
		if e.Recovery <= 0 || e.Sent == 0 {
			t.Errorf("%+v", e)
		}
	}
}

// tampered runs with one disturbance on link "xdp", and none that disturbs the
// other link.
func tampered(t *testing.T, cfg Config, d disturbance) (*Report, error) {
	t.Helper()
	h := newRunner(cfg)
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	if err := h.buildLinks(ctx, stop); err != nil {
		stop(nil)
		_ = h.closeAll()
		bedtest.SkipDenied(t, err)
		t.Fatal(err)
	}
	h.links[0].deck.all = []disturbance{{kind: "nothing", repair: func(context.Context, *link) error { return nil }}}
	h.links[1].deck.all = []disturbance{d}
	return h.report, h.runAll(ctx, stop)
}

// wantFailure fails unless a run found what it should.
func wantFailure(t *testing.T, report *Report, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, ErrFailed) {
		t.Fatalf("the run returned %v", err)
	}
	all := strings.Join(report.Failures, "\n")
	for _, w := range words {
		if !strings.Contains(all, w) {
			t.Errorf("%q is not among the findings:\n%s", w, all)
		}
	}
}

// moved waits until a client's counter has moved. An event is short: the client may
// not have had a CPU for it.
func moved(ctx context.Context, c *client, counter func(*client) uint64) error {
	read := func() (n uint64, err error) { return n, c.runOnLoop(ctx, func() { n = counter(c) }) }
	before, err := read()
	for n := before; n == before && err == nil; n, err = read() {
		time.Sleep(time.Millisecond)
	}
	return err
}

func TestStallIsFoundAndExplained(t *testing.T) {
	cfg := testConfig("stall")
	cfg.Bound = 500 * time.Millisecond
	d := disturbance{kind: "XDP program detached for good", repair: stop}
	report, err := tampered(t, cfg, d)
	wantFailure(t, report, err, "link xdp, XDP program detached for good: no answer within 500ms", "client: queue 0 ", " since ", "packets unanswered", "last answer")
	if !slices.ContainsFunc(report.Stalls, func(s Stall) bool { return s.Link == "xdp" && s.During == d.kind }) {
		t.Errorf("stalls: %+v", report.Stalls)
	}
}

// All frames of a client come back at once, unsent, and no answer is on its way: it
// must send again.
func TestClientWithoutFramesGoesOn(t *testing.T) {
	cfg := testConfig("unsent")
	cfg.Duration = time.Second
	repair := func(ctx context.Context, l *link) error {
		c := l.clients[0]
		var failed error
		check := func(err error) { failed = errors.Join(failed, err) }
		asked := c.runOnLoop(ctx, func() {
			_, err := c.sock.Load().Poll(0, time.Minute) // for ask's call of Wake
			check(err)
			for failed == nil && c.pool.Available() > 0 {
				c.window.expireBefore(math.MaxInt64)
				_, err := c.sendPackets(now())
				check(err)
			}
			c.window.expireBefore(math.MaxInt64)
			check(c.sock.Load().Reopen(ctx))
			time.Sleep(100 * time.Millisecond)
			for descs := c.descs[:1]; failed == nil && len(descs) > 0; {
				descs, err = c.receiveBatch()
				check(err)
				check(c.sock.Load().Release(descs))
			}
		})
		return errors.Join(asked, failed)
	}
	report, err := tampered(t, cfg, disturbance{kind: "frames come back unsent", repair: repair})
	if err != nil {
		t.Fatal(err, report.Failures)
	}
}

func TestLeakIsFound(t *testing.T) {
	cfg := testConfig("leak")
	cfg.Duration = time.Second
	d := disturbance{kind: "a frame forgotten", repair: func(ctx context.Context, l *link) error {
		return l.clients[0].runOnLoop(ctx, func() { l.clients[0].pool.Alloc() })
	}}
	report, err := tampered(t, cfg, d)
	wantFailure(t, report, err, "link xdp, client: 1 frames leaked: 1024 frames: pools", "yours 1")
	if report.Leaked == 0 {
		t.Error("the report has no leak")
	}
}

// The packets of a detached program go to the kernel's stack: no counter has
// them that an exact event may refer to.
func TestUnexplainedLossIsFound(t *testing.T) {
	cfg := testConfig("unexplained")
	cfg.Duration = time.Second
	repair := func(ctx context.Context, l *link) error {
		return errors.Join(moved(ctx, l.clients[0], func(c *client) uint64 { return c.window.next }), start(ctx, l))
	}
	report, err := tampered(t, cfg, disturbance{kind: "lossy", exact: true, spoil: stop, repair: repair})
	wantFailure(t, report, err, "link xdp, lossy:", "in drop counters")
	if report.Links[1].Unexplained <= 0 || report.Links[0].Unexplained != 0 {
		t.Errorf("%d and %d packets unexplained", report.Links[1].Unexplained, report.Links[0].Unexplained)
	}
}

func TestCorruptionIsFound(t *testing.T) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "soak_spoil", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
			asm.LoadMem(asm.R3, asm.R1, 4, asm.Word),
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, 60),
			asm.JGT.Reg(asm.R4, asm.R3, "tx"),
			asm.StoreImm(asm.R2, 50, 0x55, asm.Byte),
			asm.Mov.Imm(asm.R0, 3).WithSymbol("tx"), // XDP_TX
			asm.Return(),
		},
	})
	bedtest.Check(t, err)
	defer prog.Close()
	cfg := testConfig("corruption")
	cfg.Duration = time.Second
	// The program is attached for part of an event only: without a single answer
	// there would be a stall.
	var attached *afxdp.Attachment
	spoil := func(_ context.Context, l *link) error {
		return errors.Join(l.opposite.stopEnd(), l.far.Do(func() (err error) {
			attached, err = afxdp.Attach(afxdp.AttachConfig{Interface: farName, Program: prog})
			return err
		}))
	}
	repair := func(ctx context.Context, l *link) error {
		err := moved(ctx, l.clients[0], func(c *client) uint64 { return c.counts.Corrupt })
		return errors.Join(err, attached.Close(), l.opposite.startEnd(ctx))
	}
	d := disturbance{kind: "spoilt", spoil: spoil, repair: repair}
	report, err := tampered(t, cfg, d)
	wantFailure(t, report, err, "link xdp, client:", "corrupt packets", "checksum")
	if report.Links[1].Corrupt == 0 {
		t.Error("the report has no corrupt packet")
	}
}

func TestServerThatFailsEndsTheRun(t *testing.T) {
	cfg := testConfig("failing")
	cfg.ChildCommand = []string{"/bin/sh", "-c", "echo not today >&2; exit 7"}
	_, err := Run(t.Context(), cfg)
	bedtest.SkipDenied(t, err)
	if err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("error is %v, want the server's last words", err)
	}
}

func TestInterruptedRunLeavesNothing(t *testing.T) {
	before := descriptors(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	mark := fmt.Sprintf("interrupted-%d", os.Getpid()) // other packages are tested meanwhile
	cfg := testConfig(mark)
	rounds := 0
	cfg.Progress = func(int, int, string) {
		if rounds++; rounds == 2 {
			time.AfterFunc(150*time.Millisecond, cancel) // into the next one
		}
	}
	report, err := Run(ctx, cfg)
	bedtest.SkipDenied(t, err)
	if !errors.Is(err, context.Canceled) || report == nil || report.Rounds < 2 {
		t.Fatalf("an interrupted run returned %v and %+v", err, report)
	}
	if len(report.Failures) > 0 {
		t.Errorf("the interruption counts as failure: %v", report.Failures)
	}
	bedtest.Ended(t, mark)
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors became %d", before, after)
	}
}

func TestKilledRunLeavesNoServer(t *testing.T) {
	mark := fmt.Sprintf("killed-%d", os.Getpid())
	parent := exec.Command(os.Args[0], parentArgument, mark)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var waited error
	go func() {
		waited = parent.Wait()
		close(ended)
	}()
	for len(bedtest.Processes(t, mark)) < 2 { // the run and the server
		select {
		case <-ended:
			if os.Geteuid() != 0 {
				t.Skip("the run needs privileges that are missing")
			}
			t.Fatal(waited)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	bedtest.Ended(t, mark)
}

func descriptors(t *testing.T) int {
	t.Helper()
	m, err := takeMemory()
	if err != nil {
		t.Fatal(err)
	}
	return m.Descriptors
}
