// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/libra-ina/libra/internal/test/testlog"
)

// roleEnv makes the test binary run as a child; see childMain.
const roleEnv = "PROC_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(childMain(role))
	}
	goleak.VerifyTestMain(m)
}

type address struct {
	Port int `json:"port"`
}

func childMain(role string) int {
	announce := func() { _ = AnnounceReady(os.Stdout, address{Port: 4711}) }
	term := make(chan os.Signal, 1)
	switch role {
	case "work": // ready, two lines, success
		announce()
		fmt.Println("first line")
		fmt.Print("{\"loss\": 0.5}\nunterminated")
		return 0
	case "quiet success":
		return 0
	case "fail": // last output, then status 3
		for i := range 30 {
			fmt.Fprintf(os.Stderr, "step %d\n", i)
		}
		fmt.Fprint(os.Stderr, "no such job")
		return 3
	case "serve": // handles SIGTERM
		signal.Notify(term, syscall.SIGTERM)
		announce()
		fmt.Fprintln(os.Stderr, "serving")
		<-term
		fmt.Fprintln(os.Stderr, "bye")
		return 0
	case "serve and fail at the end":
		signal.Notify(term, syscall.SIGTERM)
		announce()
		<-term
		return 4
	case "hang": // no handler: SIGTERM ends it
		announce()
		time.Sleep(time.Hour)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		announce()
		time.Sleep(time.Hour)
	case "orphan maker": // its child keeps the pipes open
		cmd := self("hang")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			return 1
		}
		// The group's signals also reach the grandchild.
		time.Sleep(time.Hour)
	case "supervise":
		return superviseMain()
	}
	return 2
}

func self(role string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe)
	// The race detector would delay every child's exit by a second.
	cmd.Env = append(os.Environ(), roleEnv+"="+role, "GORACE=atexit_sleep_ms=0")
	return cmd
}

func mustStart(t *testing.T, g *Group, spec Spec) *Child {
	t.Helper()
	c, err := g.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestReadyLinesAndSuccess(t *testing.T) {
	g := NewGroup(t.Context(), Config{})
	var lines []string
	c := mustStart(t, g, Spec{
		Name:   "worker",
		Cmd:    self("work"),
		OnLine: func(line []byte) { lines = append(lines, string(line)) },
	})
	var got address
	if err := c.Ready(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Port != 4711 {
		t.Errorf("ready value: port %d, want 4711", got.Port)
	}
	if err := c.Wait(t.Context()); err != nil {
		t.Errorf("child: %v", err)
	}
	if err := g.Wait(); err != nil {
		t.Errorf("group: %v", err)
	}
	want := []string{"first line", `{"loss": 0.5}`, "unterminated"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if _, err := g.Start(Spec{Name: "late", Cmd: self("work")}); !errors.Is(err, ErrStopped) {
		t.Errorf("start after the end: %v, want ErrStopped", err)
	}
}

func TestFailureStopsTheOthersAndNamesTheCause(t *testing.T) {
	var log testlog.Log
	var told []error
	g := NewGroup(t.Context(), Config{Stderr: &log, Tail: 3, Failed: func(err error) {
		told = append(told, err)
		time.Sleep(20 * time.Millisecond) // a terminated server would report it
		if strings.Contains(log.String(), "ps | bye\n") {
			t.Error("the server was asked to end before the failure was told")
		}
	}})
	server := mustStart(t, g, Spec{Name: "ps", Cmd: self("serve"), Service: true})
	if err := server.Ready(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	mustStart(t, g, Spec{Name: "worker-1", Cmd: self("fail")})

	err := g.Wait()
	if len(told) != 1 || told[0] != err { //nolint:errorlint // the same error
		t.Errorf("told %v, want once %v", told, err)
	}
	var exit *ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("got %v, want an ExitError", err)
	}
	want := &ExitError{Name: "worker-1", Code: 3, Stderr: []string{"step 28", "step 29", "no such job"}}
	if diff := cmp.Diff(want, exit); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	wantText := "worker-1 exited with status 3; last lines of its standard error:\n  step 28\n  step 29\n  no such job"
	if err.Error() != wantText {
		t.Errorf("got  %q\nwant %q", err.Error(), wantText)
	}
	if err := server.Wait(t.Context()); !errors.As(err, &exit) || exit.Name != "worker-1" {
		t.Errorf("the stopped server reports %v, want the worker's failure", err)
	}
	for _, line := range []string{"ps | serving\n", "ps | bye\n", "worker-1 | step 0\n", "worker-1 | no such job\n"} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("log lacks %q:\n%s", line, log.String())
		}
	}
}

func TestEndings(t *testing.T) {
	tests := []struct {
		role    string
		service bool
		stop    bool // call Stop once ready
		want    error
	}{
		{role: "serve", service: true, stop: true},
		{role: "hang", service: true, stop: true},
		{role: "orphan maker", stop: true},
		{role: "serve and fail at the end", stop: true, want: &ExitError{Name: "c", Code: 4}},
		{role: "stubborn", stop: true, want: &KilledError{Name: "c", Grace: 200 * time.Millisecond}},
		{role: "quiet success"},
		{
			role: "quiet success", service: true,
			want: &ExitError{Name: "c", When: "but has to run until it is stopped"},
		},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%s, service %v", test.role, test.service), func(t *testing.T) {
			g := NewGroup(t.Context(), Config{Grace: 200 * time.Millisecond})
			if test.role != "stubborn" {
				g.cfg.Grace = time.Minute
			}
			c := mustStart(t, g, Spec{Name: "c", Cmd: self(test.role), Service: test.service})
			end := g.Wait
			if test.stop {
				if err := c.Ready(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				end = g.Stop
			}
			err := end()
			if diff := cmp.Diff(test.want, err); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if test.stop && test.want == nil {
				if err := c.Wait(t.Context()); !errors.Is(err, ErrStopped) {
					t.Errorf("child: %v, want ErrStopped", err)
				}
			}
		})
	}
}

// The grace period is counted in looks: while this process is suspended it does not pass.
func TestGraceIsCountedInLooks(t *testing.T) {
	g := NewGroup(t.Context(), Config{Grace: time.Minute})
	c := mustStart(t, g, Spec{Name: "c", Cmd: self("stubborn")})
	if err := c.Ready(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{looks, looks - 1} {
		look, ended := make(chan time.Time), make(chan bool, 1)
		go func() { ended <- allEnd([]*Child{c}, look) }()
		for range n {
			look <- time.Time{}
		}
		if n < looks {
			c.kill()
		}
		if got, want := <-ended, n < looks; got != want {
			t.Errorf("after %d looks all have ended: %v, want %v", n, got, want)
		}
	}
	_ = g.Stop() // it reports that the child was killed
}

// A child that is told to end has ended as if by itself, and one that is suspended goes on; a
// signal to one that has ended reaches nobody.
func TestSignal(t *testing.T) {
	g := NewGroup(t.Context(), Config{})
	c := mustStart(t, g, Spec{Name: "c", Cmd: self("serve")})
	if err := c.Ready(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGTERM, syscall.SIGCONT} {
		c.Signal(s)
	}
	if err := c.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	c.Signal(syscall.SIGKILL)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestReadyFails(t *testing.T) {
	t.Run("child ends first", func(t *testing.T) {
		g := NewGroup(t.Context(), Config{})
		c := mustStart(t, g, Spec{Name: "c", Cmd: self("quiet success")})
		var exit *ExitError
		if err := c.Ready(t.Context(), nil); !errors.As(err, &exit) || exit.Code != 0 {
			t.Errorf("got %v, want an ExitError with status 0", err)
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("value of another type", func(t *testing.T) {
		g := NewGroup(t.Context(), Config{})
		c := mustStart(t, g, Spec{Name: "c", Cmd: self("work")})
		var wrong []int
		if err := c.Ready(t.Context(), &wrong); err == nil || !strings.Contains(err.Error(), "4711") {
			t.Errorf("got %v, want an error that shows the value", err)
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("caller gives up", func(t *testing.T) {
		g := NewGroup(t.Context(), Config{})
		cmd := exec.Command("sleep", "3600")
		c := mustStart(t, g, Spec{Name: "c", Cmd: cmd})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Ready(ctx, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestCancelledContextStopsTheGroup(t *testing.T) {
	cause := errors.New("interrupted by the user")
	ctx, cancel := context.WithCancelCause(t.Context())
	g := NewGroup(ctx, Config{Grace: time.Minute})
	c := mustStart(t, g, Spec{Name: "c", Cmd: self("serve"), Service: true})
	if err := c.Ready(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	cancel(cause)
	if err := g.Wait(); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	if _, err := g.Start(Spec{Name: "late", Cmd: self("work")}); !errors.Is(err, cause) {
		t.Errorf("start: %v, want %v", err, cause)
	}
}

func TestStartFails(t *testing.T) {
	g := NewGroup(t.Context(), Config{})
	_, err := g.Start(Spec{Name: "ghost", Cmd: exec.Command("/nonexistent/libra")})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "ghost") {
		t.Errorf("got %v, want os.ErrNotExist with the child's name", err)
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

func TestLineWriterCutsAnywhere(t *testing.T) {
	text := "a\r\nbc\n\n" + strings.Repeat("x", maxLine+5) + "\nend"
	for _, step := range []int{1, 2, 7, len(text)} {
		var lines []string
		w := lineWriter{emit: func(line []byte) { lines = append(lines, string(line)) }}
		for chunk := range slices.Chunk([]byte(text), step) {
			if n, err := w.Write(chunk); n != len(chunk) || err != nil {
				t.Fatalf("write: %d, %v", n, err)
			}
		}
		w.flush()
		long := strings.Join(lines[3:len(lines)-1], "")
		if diff := cmp.Diff([]string{"a", "bc", ""}, lines[:3]); diff != "" || lines[len(lines)-1] != "end" {
			t.Errorf("step %d: %s, last %q", step, diff, lines[len(lines)-1])
		}
		if long != strings.Repeat("x", maxLine+5) {
			t.Errorf("step %d: the long line came out with %d bytes", step, len(long))
		}
	}
}
