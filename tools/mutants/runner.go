// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// memoryLimit bounds the data of a test process, in KiB: a mutant that allocates without end
// fails before it uses up the machine's memory.
const memoryLimit = 6 << 20

// A runner runs the tests of a target against its mutants.
type runner struct {
	root, temp string
	target     target
	jobs       int
	slack      time.Duration
	limits     []limits // of each stage
	binaries   []string // of each stage: the tests without a mutant, or with all that have a number
	overlay    string   // of the binaries: the mutants that have a number
}

// tryMutants runs the tests against each mutant and stores the results in the mutants. It
// returns those that it tried before the context ended.
func (r *runner) tryMutants(ctx context.Context, mutants []*mutant) ([]*mutant, error) {
	var err error
	if r.target.dir != xdp {
		err = r.combineMutants(mutants)
	}
	if err == nil {
		err = r.runBaseline(ctx)
	}
	if err != nil && r.overlay != "" && ctx.Err() == nil {
		// The compiler may refuse one of the mutants, and a test may fail because a function
		// with copies allocates where the function without them does not.
		r.separateMutants(mutants)
		err = r.runBaseline(ctx)
	}
	if err != nil {
		return nil, err
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	next := make(chan int)
	tried := make([]bool, len(mutants))
	for range r.jobs {
		wg.Go(func() {
			for i := range next {
				err := r.tryOne(ctx, mutants[i])
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					tried[i] = true
					fmt.Fprintf(os.Stderr, "%s %d/%d %s: %s %s\n",
						r.target.dir, i+1, len(mutants), mutants[i], mutants[i].Result, mutants[i].By)
				}
				mu.Unlock()
			}
		})
	}
	for i := range mutants {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	var done []*mutant
	for i, m := range mutants {
		if tried[i] {
			done = append(done, m)
		}
	}
	if ctx.Err() != nil {
		return done, ctx.Err()
	}
	return done, errors.Join(errs...)
}

// runBaseline runs the stages without a mutant: they must pass, and the time that they take gives
// the limits for the mutants' tests.
func (r *runner) runBaseline(ctx context.Context) error {
	r.limits, r.binaries = nil, nil
	for _, s := range r.target.stages {
		out := filepath.Join(r.temp, strings.ReplaceAll(s.dir, "/", "-")+".test")
		if !slices.Contains(r.binaries, out) {
			if err := r.buildTests(ctx, s, r.overlay, out); err != nil {
				return fmt.Errorf("tests of %s: %w", s.dir, err)
			}
		}
		r.binaries = append(r.binaries, out)
		start := time.Now()
		o, err := r.runTests(ctx, s, variant{binary: out, overlay: r.overlay}, limits{10 * time.Minute, 10 * time.Minute})
		if err != nil {
			return fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", s.dir, err, o.text)
		}
		r.limits = append(r.limits, limits{5*time.Since(start) + r.slack, 5*o.silence + r.slack})
	}
	return nil
}

// tryOne runs the stages against a mutant until one fails.
func (r *runner) tryOne(ctx context.Context, m *mutant) error {
	dir, err := os.MkdirTemp(r.temp, "mutant-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	m.Result = survived
	for n, s := range r.target.stages {
		v, err := r.prepareStage(ctx, dir, n, m)
		var refused *refusedError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused):
			m.Result, m.By = broken, refused.Error()
			return nil
		case err != nil:
			return err
		}
		o, err := r.runTests(ctx, s, v, r.limits[n])
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			continue
		}
		m.Result, m.By = killed, failedTest(o.text)
		if errors.Is(err, context.DeadlineExceeded) {
			m.Result, m.By = timedOut, runningTest(o.text)
		}
		break
	}
	if m.Result == survived && r.target.dir != xdp {
		// Last, because it takes seconds and the tests kill nearly every mutant.
		overlay := filepath.Join(dir, "overlay.json")
		err := r.compileGo(ctx, "vet", "-overlay", overlay, "./"+r.target.dir)
		var refused *refusedError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused):
			m.Result, m.By = killed, refused.Error()
		case err != nil:
			return err
		}
	}
	if m.Reason != "" {
		if m.Result == survived {
			m.Result = equivalent
		} else {
			m.Result = mistaken
		}
	}
	return nil
}

// The limits of a stage are how long its tests may take, and how long they may print nothing. A
// test that hangs reaches the second much earlier.
type limits struct{ total, silence time.Duration }

// A variant is what a stage's tests run with. For Go: the binary, the number of the mutant in it,
// and the overlay with which it was compiled, for Go commands that the tests start themselves. For
// the XDP program: the binary without a mutant, and the object that it loads.
type variant struct {
	binary, overlay, object string
	number                  int
}

// prepareStage compiles what a stage needs for a mutant, into the mutant's directory.
func (r *runner) prepareStage(ctx context.Context, dir string, n int, m *mutant) (variant, error) {
	if r.target.dir == xdp {
		v := variant{binary: r.binaries[n], object: filepath.Join(dir, xdpObject)}
		if n > 0 {
			return v, nil // compiled for the first stage
		}
		return v, compileXDP(ctx, r.root, dir, m)
	}
	v := variant{binary: filepath.Join(dir, fmt.Sprintf("%d.test", n)), overlay: filepath.Join(dir, "overlay.json")}
	changed := filepath.Join(dir, filepath.Base(m.File))
	original := filepath.Join(r.root, filepath.FromSlash(m.File))
	mapping, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err := errors.Join(err, os.WriteFile(changed, m.mutatedFile(), 0o600),
		os.WriteFile(v.overlay, mapping, 0o600)); err != nil {
		return v, err
	}
	if m.number > 0 {
		return variant{binary: r.binaries[n], overlay: r.overlay, number: m.number}, nil
	}
	return v, r.buildTests(ctx, r.target.stages[n], v.overlay, v.binary)
}

// A refusedError is what a compiler prints about code that it refuses.
type refusedError struct{ text []byte }

func (e *refusedError) Error() string {
	for line := range strings.Lines(string(e.text)) {
		if !strings.HasPrefix(line, "#") {
			return strings.TrimSpace(line)
		}
	}
	return "refused by the compiler"
}

// compile runs a compiler. If that fails, the error is a refusedError.
func compile(cmd *exec.Cmd) error {
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &refusedError{text}
	}
	return err
}

// compileGo runs a go command that compiles, in the module's root directory.
func (r *runner) compileGo(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.root
	return compile(cmd)
}

// buildTests compiles the tests of a stage, without the checks of go vet that are part of go test:
// code that they refuse compiles, and the tests come first.
func (r *runner) buildTests(ctx context.Context, s stage, overlay, out string) error {
	args := []string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", out}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	return r.compileGo(ctx, append(args, "./"+s.dir)...)
}

// runTests runs the tests of a stage in their package's directory, as go test does.
// Past a limit it kills them and their children and returns context.DeadlineExceeded.
func (r *runner) runTests(ctx context.Context, s stage, v variant, l limits) (*output, error) {
	ctx, cancel := context.WithTimeout(ctx, l.total)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	args := []string{"-c", fmt.Sprintf("ulimit -d %d; exec \"$@\"", memoryLimit), "sh", v.binary,
		"-test.v", "-test.failfast", "-test.paniconexit0", "-test.timeout=" + (l.total + time.Minute).String()}
	args = append(args, r.testFlags(s)...)
	args = append(args, s.flags...)
	if v.object != "" {
		args = append(args, "-object="+v.object)
	}
	if s.run != "" {
		args = append(args, "-test.run="+s.run)
	}
	if s.skip != "" {
		args = append(args, "-test.skip="+s.skip)
	}
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(s.dir))
	if v.overlay != "" {
		cmd.Env = append(os.Environ(),
			"GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+v.overlay),
			fmt.Sprintf("%s=%d", numberVariable, v.number))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	watch := time.AfterFunc(l.silence, func() { end(context.DeadlineExceeded) })
	out := &output{last: time.Now(), limit: l.silence, watch: watch}
	defer out.watch.Stop()
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if ctx.Err() != nil {
		return out, context.Cause(ctx)
	}
	return out, err
}

// testFlags are those that keep a stage's tests from writing into the work tree. Rapid stores the
// input of a failure beside the test, and tries it first in the next run: an input that was found
// for one mutant would kill another. The second flag keeps it from searching for a smaller input,
// which takes so long that the limits would be reached.
func (r *runner) testFlags(s stage) []string {
	names, _ := filepath.Glob(filepath.Join(r.root, filepath.FromSlash(s.dir), "*_test.go"))
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte(`"pgregory.net/rapid"`)) {
			return []string{"-rapid.nofailfile", "-rapid.shrinktime=0s"}
		}
	}
	return nil
}

// An output keeps the first mebibyte that tests print, which is at least a line for each test, and
// measures the longest time between two lines.
type output struct {
	text    []byte
	last    time.Time
	silence time.Duration
	limit   time.Duration // of the silence
	watch   *time.Timer   // ends the tests after a longer silence
}

func (o *output) Write(b []byte) (int, error) {
	o.watch.Reset(o.limit)
	now := time.Now()
	o.silence, o.last = max(o.silence, now.Sub(o.last)), now
	o.text = append(o.text, b[:min(len(b), 1<<20-len(o.text))]...)
	return len(b), nil
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^panic: (.{0,80})|^fatal error: (.{0,80})`)

// failedTest finds the first failure in the output of tests.
func failedTest(text []byte) string {
	found := failure.FindSubmatch(text)
	if found == nil {
		return ""
	}
	return string(bytes.Join(found[1:], nil))
}

var beginning = regexp.MustCompile(`(?m)^=== (?:RUN|CONT) +(\S+)`)

// runningTest finds the test that began last in the output of tests that were killed.
func runningTest(text []byte) string {
	if found := beginning.FindAllSubmatch(text, -1); len(found) > 0 {
		return string(found[len(found)-1][1])
	}
	return ""
}
