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
	limits     []time.Duration // one a stage
}

// try runs the tests against each mutant and stores the results in them. It
// returns those that it came to before the context ended.
func (r *runner) try(ctx context.Context, mutants []*mutant) ([]*mutant, error) {
	if err := r.baseline(ctx); err != nil {
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
				err := r.one(ctx, i, mutants[i])
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
	for _, s := range r.target.stages {
		out := filepath.Join(r.temp, "baseline.test")
		if text, err := r.build(ctx, s, "", out); err != nil {
			return fmt.Errorf("tests of %s: %w\n%s", s.dir, err, text)
		}
		start := time.Now()
		if text, err := r.test(ctx, s, out, "", 10*time.Minute); err != nil {
			return fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", s.dir, err, text)
		}
		r.limits = append(r.limits, 5*time.Since(start)+r.slack)
	}
	return nil
}

// one runs the stages against one mutant until one fails.
func (r *runner) one(ctx context.Context, i int, m *mutant) error {
	dir, err := os.MkdirTemp(r.temp, "mutant-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	original, changed, err := r.change(ctx, dir, m)
	if err != nil || m.Result == broken {
		return err
	}
	overlay := filepath.Join(dir, "overlay.json")
	mapping, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(overlay, mapping, 0o600); err != nil {
		return err
	}
	m.Result = survived
	for n, s := range r.target.stages {
		binary := filepath.Join(dir, fmt.Sprintf("%d.test", n))
		if text, err := r.build(ctx, s, overlay, binary); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			m.Result, m.By = broken, firstLine(text)
			return nil
		}
		text, err := r.test(ctx, s, binary, overlay, r.limits[n])
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			continue
		}
		m.Result, m.By = killed, failedTest(text)
		if errors.Is(err, context.DeadlineExceeded) {
			m.Result = timedOut
		}
		break
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

// change writes the file that takes the place of an original: the mutant's own,
// or the XDP program's object.
func (r *runner) change(ctx context.Context, dir string, m *mutant) (original, changed string, err error) {
	if r.target.dir != xdp {
		changed = filepath.Join(dir, filepath.Base(m.File))
		return filepath.Join(r.root, filepath.FromSlash(m.File)), changed, os.WriteFile(changed, m.apply(), 0o600)
	}
	changed, text, err := compileXDP(ctx, r.root, dir, m)
	if err != nil && ctx.Err() == nil && text != nil {
		m.Result, m.By = broken, firstLine(text)
		err = nil
	}
	return filepath.Join(r.root, filepath.FromSlash(xdpObject)), changed, err
}

// build compiles the tests of a stage.
func (r *runner) build(ctx context.Context, s stage, overlay, out string) ([]byte, error) {
	args := []string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", out}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+s.dir)...)
	cmd.Dir = r.root
	return cmd.CombinedOutput()
}

// test runs the tests of a stage in their package's directory, as go test does.
// The overlay is for the Go commands that tests start themselves. Past the limit
// it kills them and their children and returns context.DeadlineExceeded.
func (r *runner) test(ctx context.Context, s stage, binary, overlay string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := []string{"-c", fmt.Sprintf("ulimit -d %d; exec \"$@\"", memoryLimit), "sh", binary,
		"-test.failfast", "-test.paniconexit0", "-test.timeout=" + (limit + time.Minute).String()}
	args = append(args, r.flags(s)...)
	if s.run != "" {
		args = append(args, "-test.run="+s.run)
	}
	if s.skip != "" {
		args = append(args, "-test.skip="+s.skip)
	}
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(s.dir))
	if overlay != "" {
		cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		return out.text, ctx.Err()
	}
	return out.text, err
}

// flags are those that keep a stage's tests from writing into the work tree.
// Rapid stores the input of a failure beside the test, and tries it first in the
// next run: a mutant would be killed by what was found for another.
func (r *runner) flags(s stage) []string {
	names, _ := filepath.Glob(filepath.Join(r.root, filepath.FromSlash(s.dir), "*_test.go"))
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte(`"pgregory.net/rapid"`)) {
			return []string{"-rapid.nofailfile"}
		}
	}
	return nil
}

// tail keeps the first mebibyte of a test's output.
type tail struct{ text []byte }

func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b[:min(len(b), 1<<20-len(t.text))]...)
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

func firstLine(text []byte) string {
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
