// SPDX-License-Identifier: Apache-2.0

package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/proc"
)

// testArgument makes the test binary a child, of one of the roles below.
const testArgument = "child-process"

// testConfig is what the children of the tests are told.
type testConfig struct {
	Role string
	Text string
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == testArgument {
		if err := Main(os.Args[2:], runTestChild); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runTestChild plays the roles of the children.
func runTestChild(ctx context.Context, c testConfig) error {
	switch c.Role {
	case "silent": // never ready; ends on SIGTERM
		<-ctx.Done()
		return context.Cause(ctx)
	case "failing": // after it was ready
		ctx, cancel := context.WithCancelCause(ctx)
		return Serve(ctx, func(context.Context, string, json.RawMessage) (any, error) {
			cancel(errors.New("out of " + c.Text))
			return nil, nil
		})
	}
	released := make(chan struct{})
	return Serve(ctx, func(ctx context.Context, op string, arg json.RawMessage) (any, error) {
		switch op {
		case "text":
			fmt.Println("a line that answers nothing")
			return c.Text, nil
		case "double":
			var n int
			err := json.Unmarshal(arg, &n)
			return 2 * n, err
		case "cpus":
			var set unix.CPUSet
			err := unix.SchedGetaffinity(0, &set)
			return set.Count(), err
		case "file":
			text, err := io.ReadAll(os.NewFile(3, "handed over"))
			return string(text), err
		case "wait":
			<-released
			return nil, nil
		case "release":
			close(released)
			return nil, nil
		case "hang":
			<-ctx.Done()
			return nil, ctx.Err()
		case "exit":
			fmt.Fprintln(os.Stderr, "last words")
			os.Exit(7)
		}
		return nil, Unknown(op)
	})
}

// start starts a child of the test binary that is ready.
func start(t *testing.T, s Spec) (*proc.Group, *Child) {
	t.Helper()
	g := proc.NewGroup(t.Context(), proc.Config{Grace: time.Minute})
	t.Cleanup(func() { _ = g.Stop() })
	s.Name, s.Command = "test child", []string{os.Args[0], testArgument}
	c, err := Start(g, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g, c
}

func TestChildIsConfiguredAndAnswers(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := write.WriteString("through a file"); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	defer read.Close()
	var lines []string
	g, c := start(t, Spec{
		Config: testConfig{Text: "hello"}, CPU: new(0), Files: []*os.File{read},
		OnLine: func(line []byte) { lines = append(lines, string(line)) },
	})
	var text, file string
	var cpus int
	for op, into := range map[string]any{"text": &text, "file": &file, "cpus": &cpus} {
		if err := c.Ask(t.Context(), op, nil, into); err != nil {
			t.Error(err)
		}
	}
	if text != "hello" || file != "through a file" || cpus != 1 {
		t.Errorf("text %q, file %q, %d CPUs", text, file, cpus)
	}
	if err := c.Ask(t.Context(), "dance", nil, nil); err == nil || !strings.Contains(err.Error(), `no operation "dance"`) {
		t.Errorf("an unknown operation: %v", err)
	}
	if err := c.Ask(t.Context(), "text", nil, &cpus); err == nil || !strings.Contains(err.Error(), `"hello"`) {
		t.Errorf("an answer of another type: %v", err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("the end of its input: %v", err)
	}
	if err := c.Ask(t.Context(), "text", nil, nil); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a child that has ended: %v", err)
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if !slices.Contains(lines, "a line that answers nothing") {
		t.Errorf("other lines: %q", lines)
	}
}

// Requests overlap, and each gets its own answer.
func TestRequestsDoNotWaitForEachOther(t *testing.T) {
	_, c := start(t, Spec{Config: testConfig{}})
	var all sync.WaitGroup
	all.Go(func() {
		if err := c.Ask(t.Context(), "wait", nil, nil); err != nil {
			t.Error(err)
		}
	})
	for i := range 20 {
		all.Go(func() {
			var n int
			if err := c.Ask(t.Context(), "double", i, &n); err != nil || n != 2*i {
				t.Errorf("twice %d is %d, %v", i, n, err)
			}
		})
	}
	if err := c.Ask(t.Context(), "release", nil, nil); err != nil {
		t.Error(err)
	}
	all.Wait()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("out of patience"))
	defer cancel()
	if err := c.Ask(ctx, "hang", nil, nil); err == nil || !strings.Contains(err.Error(), "test child does not hang: out of patience") {
		t.Errorf("no answer in time: %v", err)
	}
	c.waiting.Range(func(id, _ any) bool {
		t.Errorf("request %v is still waited for", id)
		return true
	})
}

// Children are started, asked and stopped together; what all answer is in their order. One that
// fails is named.
func TestAllTogether(t *testing.T) {
	g := proc.NewGroup(t.Context(), proc.Config{Grace: time.Minute})
	t.Cleanup(func() { _ = g.Stop() })
	var specs []Spec
	for _, text := range []string{"a", "b", "c"} {
		specs = append(specs, Spec{Name: "child " + text, Command: []string{os.Args[0], testArgument}, Config: testConfig{Text: text}})
	}
	all, err := StartAll(t.Context(), g, specs)
	if err != nil {
		t.Fatal(err)
	}
	if texts, err := AskAll[string](t.Context(), all, "text"); err != nil || !slices.Equal(texts, []string{"a", "b", "c"}) {
		t.Errorf("%q, %v", texts, err)
	}
	if _, err := AskAll[string](t.Context(), all, "dance"); err == nil || !strings.Contains(err.Error(), `no operation "dance"`) {
		t.Errorf("an unknown operation: %v", err)
	}
	if err := errors.Join(StopAll(t.Context(), all), g.Wait()); err != nil {
		t.Error(err)
	}
	specs[1].Command = []string{"false"}
	if _, err := StartAll(t.Context(), proc.NewGroup(t.Context(), proc.Config{}), specs[1:2]); err == nil || !strings.Contains(err.Error(), "child b") {
		t.Errorf("a child that is never ready: %v", err)
	}
}

func TestChildThatDiesExplainsItself(t *testing.T) {
	g, c := start(t, Spec{Config: testConfig{}})
	err := c.Ask(t.Context(), "exit", nil, nil)
	var exit *proc.ExitError
	if !errors.As(err, &exit) || exit.Code != 7 || !strings.Contains(err.Error(), "last words") || !strings.Contains(err.Error(), "asked to exit") {
		t.Errorf("the question: %v", err)
	}
	if err := g.Wait(); !errors.As(err, &exit) {
		t.Errorf("the group: %v", err)
	}
	if err := c.Kill(); err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("killing it afterwards: %v", err)
	}
}

func TestServeReturnsWhatEndsItsContext(t *testing.T) {
	_, c := start(t, Spec{Config: testConfig{Role: "failing", Text: "paper"}})
	// The answer may come before the end.
	_ = c.Ask(t.Context(), "fail", nil, nil)
	if err := c.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "out of paper") {
		t.Errorf("got %v", err)
	}
}

// SIGTERM is an orderly end, ready or not.
func TestGroupStopsService(t *testing.T) {
	g, _ := start(t, Spec{Config: testConfig{}, Service: true})
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	g = proc.NewGroup(t.Context(), proc.Config{Grace: time.Minute})
	c, err := Start(g, Spec{Name: "silent", Command: []string{os.Args[0], testArgument}, Config: testConfig{Role: "silent"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a child that is never ready: %v", err)
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

func TestKill(t *testing.T) {
	g, c := start(t, Spec{Config: testConfig{}, Service: true})
	if err := c.Kill(); err != nil {
		t.Error(err)
	}
	if err := g.Wait(); err == nil {
		t.Error("the group did not notice")
	}
}

func TestMainRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"words"}, {`{"config":[]}`}} {
		err := Main(args, func(context.Context, testConfig) error { return errors.New("was called") })
		if err == nil || !strings.Contains(err.Error(), "for a benchmark to call") {
			t.Errorf("%q: %v", args, err)
		}
	}
	err := Main([]string{`{"cpu":1023,"config":{}}`}, func(context.Context, testConfig) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "CPU 1023") {
		t.Errorf("a CPU that is not there: %v", err)
	}
}

func TestCommand(t *testing.T) {
	got := []string{"/bin/true"}
	if err := Command(&got, "soak"); err != nil || !slices.Equal(got, []string{"/bin/true"}) {
		t.Errorf("%q, %v", got, err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	if err := Command(&got, "soak"); err != nil || !slices.Equal(got, []string{self, "bench", "soak", "child"}) {
		t.Errorf("%q, %v", got, err)
	}
}
