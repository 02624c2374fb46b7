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

// memoryLimit bounds the data of a test process, in KiB: a mutant that
// allocates without end meets it before it hurts the machine.
const memoryLimit = 6 << 20

// A runner runs the tests of a target against its mutants.
type runner struct {
	root, temp string
	target     target
	jobs       int
	slack      time.Duration
	bounds     []bound  // one a stage
	binaries   []string // one a stage: the tests without a mutant, or with those that have a number
	overlay    string   // with which they are compiled
}

// try runs the tests against each mutant and stores the results in them. It
// returns those that it came to before the context ended.
func (r *runner) try(ctx context.Context, mutants []*mutant) ([]*mutant, error) {
	var err error
	if r.target.dir != xdp {
		err = r.together(mutants)
	}
	if err == nil {
		err = r.baseline(ctx)
	}
	if err != nil && r.overlay != "" && ctx.Err() == nil {
		// A mutant that the compiler refuses spoils all, and the copies of a function
		// may allocate where it alone does not.
		r.alone(mutants)
		err = r.baseline(ctx)
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
				err := r.one(ctx, mutants[i])
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					tried[i] = true
					fmt.Fprintf(os.Stderr, "%s %d/%d %s: %s %s\n", r.target.dir, i+1, len(mutants), mutants[i], mutants[i].Result, mutants[i].By)
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

// baseline runs the stages without a mutant: they must pass, and their times
// bound those of the mutants' tests.
func (r *runner) baseline(ctx context.Context) error {
	r.bounds, r.binaries = nil, nil
	for _, s := range r.target.stages {
		out := filepath.Join(r.temp, strings.ReplaceAll(s.dir, "/", "-")+".test")
		if !slices.Contains(r.binaries, out) {
			if err := r.build(ctx, s, r.overlay, out); err != nil {
				return fmt.Errorf("tests of %s: %w", s.dir, err)
			}
		}
		r.binaries = append(r.binaries, out)
		start := time.Now()
		o, err := r.test(ctx, s, change{binary: out, overlay: r.overlay}, bound{10 * time.Minute, 10 * time.Minute})
		if err != nil {
			return fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", s.dir, err, o.text)
		}
		r.bounds = append(r.bounds, bound{5*time.Since(start) + r.slack, 5*o.silence + r.slack})
	}
	return nil
}

// one runs the stages against one mutant until one fails.
func (r *runner) one(ctx context.Context, m *mutant) error {
	dir, err := os.MkdirTemp(r.temp, "mutant-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	m.Result = survived
	for n, s := range r.target.stages {
		c, err := r.prepare(ctx, dir, n, m)
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
		o, err := r.test(ctx, s, c, r.bounds[n])
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
		// Run last: it takes seconds, and the tests see nearly every mutant.
		overlay := filepath.Join(dir, "overlay.json")
		err := r.compile(ctx, "vet", "-overlay", overlay, "./"+r.target.dir)
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

// A bound is how long a stage's tests may take, and how long they may print nothing. The
// second is met much earlier by one that hangs.
type bound struct{ total, silence time.Duration }

// A change is what a stage's tests run with: a binary, and for Go commands that
// they start themselves the overlay with which it was compiled, and the number of the
// mutant among those in it; or the binary without a mutant, and the object of the XDP
// program that it is to load.
type change struct {
	binary, overlay, object string
	number                  int
}

// prepare compiles what a stage needs for a mutant, into its directory.
func (r *runner) prepare(ctx context.Context, dir string, n int, m *mutant) (change, error) {
	if r.target.dir == xdp {
		c := change{binary: r.binaries[n], object: filepath.Join(dir, xdpObject)}
		if n > 0 {
			return c, nil // compiled for the first stage
		}
		return c, compileXDP(ctx, r.root, dir, m)
	}
	c := change{binary: filepath.Join(dir, fmt.Sprintf("%d.test", n)), overlay: filepath.Join(dir, "overlay.json")}
	changed := filepath.Join(dir, filepath.Base(m.File))
	mapping, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(r.root, filepath.FromSlash(m.File)): changed}})
	if err := errors.Join(err, os.WriteFile(changed, m.apply(), 0o600), os.WriteFile(c.overlay, mapping, 0o600)); err != nil {
		return c, err
	}
	if m.number > 0 {
		return change{binary: r.binaries[n], overlay: r.overlay, number: m.number}, nil
	}
	return c, r.build(ctx, r.target.stages[n], c.overlay, c.binary)
}

// A refusedError is what a compiler prints about code that it does not take.
type refusedError struct{ text []byte }

func (e *refusedError) Error() string {
	for line := range strings.Lines(string(e.text)) {
		if !strings.HasPrefix(line, "#") {
			return strings.TrimSpace(line)
		}
	}
	return "refused by the compiler"
}

// compile runs a compiler.
func compile(cmd *exec.Cmd) error {
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &refusedError{text}
	}
	return err
}

// compile runs a go command that compiles, in the module's root.
func (r *runner) compile(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.root
	return compile(cmd)
}

// build compiles the tests of a stage, without the checks of go vet that go test
// makes: what they refuse compiles, and is for the tests to see.
func (r *runner) build(ctx context.Context, s stage, overlay, out string) error {
	args := []string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", out}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	return r.compile(ctx, append(args, "./"+s.dir)...)
}

// test runs the tests of a stage in their package's directory, as go test does.
// Past a bound it kills them and their children and returns
// context.DeadlineExceeded.
func (r *runner) test(ctx context.Context, s stage, c change, b bound) (*output, error) {
	ctx, cancel := context.WithTimeout(ctx, b.total)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	args := []string{"-c", fmt.Sprintf("ulimit -d %d; exec \"$@\"", memoryLimit), "sh", c.binary,
		"-test.v", "-test.failfast", "-test.paniconexit0", "-test.timeout=" + (b.total + time.Minute).String()}
	args = append(args, r.flags(s)...)
	args = append(args, s.flags...)
	if c.object != "" {
		args = append(args, "-object="+c.object)
	}
	if s.run != "" {
		args = append(args, "-test.run="+s.run)
	}
	if s.skip != "" {
		args = append(args, "-test.skip="+s.skip)
	}
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(s.dir))
	if c.overlay != "" {
		cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+c.overlay), fmt.Sprintf("%s=%d", numberVariable, c.number))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out := &output{last: time.Now(), limit: b.silence, watch: time.AfterFunc(b.silence, func() { end(context.DeadlineExceeded) })}
	defer out.watch.Stop()
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if ctx.Err() != nil {
		return out, context.Cause(ctx)
	}
	return out, err
}

// flags are those that keep a stage's tests from writing into the work tree.
// Rapid stores the input of a failure beside the test, and tries it first in the
// next run: a mutant would be killed by what was found for another. Nor does it look for
// a smaller input, which takes so long that a kill would look like one by time.
func (r *runner) flags(s stage) []string {
	names, _ := filepath.Glob(filepath.Join(r.root, filepath.FromSlash(s.dir), "*_test.go"))
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte(`"pgregory.net/rapid"`)) {
			return []string{"-rapid.nofailfile", "-rapid.shrinktime=0s"}
		}
	}
	return nil
}

// An output keeps the first mebibyte of what tests print, which is a line or more for
// each test, and the longest time between two lines.
type output struct {
	text    []byte
	last    time.Time
	silence time.Duration
	limit   time.Duration // of the silence
	watch   *time.Timer   // ends a longer one
}

func (o *output) Write(b []byte) (int, error) {
	o.watch.Reset(o.limit)
	now := time.Now()
	o.silence, o.last = max(o.silence, now.Sub(o.last)), now
	o.text = append(o.text, b[:min(len(b), 1<<20-len(o.text))]...)
	return len(b), nil
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^panic: (.{0,80})|^fatal error: (.{0,80})`)

// failedTest finds what failed first in the output of a test.
func failedTest(text []byte) string {
	found := failure.FindSubmatch(text)
	if found == nil {
		return ""
	}
	return string(bytes.Join(found[1:], nil))
}

var beginning = regexp.MustCompile(`(?m)^=== (?:RUN|CONT) +(\S+)`)

// runningTest finds which test began last in the output of tests that were ended.
func runningTest(text []byte) string {
	if found := beginning.FindAllSubmatch(text, -1); len(found) > 0 {
		return string(found[len(found)-1][1])
	}
	return ""
}
