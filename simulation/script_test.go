// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/simulation/world"
)

// scriptSeeds is the number of schedules of each script: what it expects is so in all of them.
const scriptSeeds = 20

// clusterScriptSeeds is the same for clusters, whose lives take fifty times as long.
const clusterScriptSeeds = 6

// Each script in testdata holds, whatever the schedule. docs/simulation.md explains its lines.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			seeds := uint64(scriptSeeds)
			if isClusterScript.Match(text) {
				seeds = clusterScriptSeeds
			}
			for seed := range seeds {
				runScript(t, filepath.Base(name), string(text), seed+1)
			}
		})
	}
}

// A script notices what it does not expect, in its own lines and in the state of the life.
func TestScriptsFail(t *testing.T) {
	copied, err := os.ReadFile("testdata/late-copy-is-not-applied.txt")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"fault all admissions have the same epoch\n" + string(copied):                     "banks, harvest and store hold",
		"join worker 1\nfly worker 1\n":                                                   "x:2: unknown command \"fly worker 1\"",
		"join worker 1\npush worker 1 keys c0 as p\nfinish p\nexpect p refused\n":         "x:4: p is ok, not refused",
		"join worker 1\npush worker 1 keys c0 h0 as p\nfinish p\nexpect applied c0 = 2\n": "x:4: it is 1",
		"join worker 3\n":                    "x:1: no worker 3",
		"deliver worker 1 -> server first\n": "x:1: of 0 kept frames",
		"life dim 0\n":                       "x:1: dim 0",
		"join worker 1\nexpect p ok\n":       "x:2: no call p",
		"join worker 1\nfault x\n":           "x:2: the life has begun",
		"join worker 1\nhold worker 1 -> server\npush worker 1 keys c0 as p\nfinish p\nexpect p ok\n":               "x:5: p is silent, not ok",
		"fault the server adds a frame twice\njoin worker 1\n" + strings.Repeat("push worker 1 keys c0 as p\n", 16): "banks, harvest and store hold",
		"cluster twice\n":            "x:1: twice: no such property of a cluster",
		"cluster once\nfly switch\n": "x:2: unknown command \"fly switch\"",
		"expect violation a flood\n": "the violation \"a flood\" is expected, there is <nil>",
	} {
		_, err := liveScript(t, "x", text, 1)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %s", text, err, want)
		}
	}
}

// runScript runs a script with one seed, and prints the end of its trace if it fails.
func runScript(t *testing.T, name, text string, seed uint64) {
	trace, err := liveScript(t, name, text, seed)
	if err == nil {
		return
	}
	lines := strings.SplitAfter(trace, "\n")
	t.Errorf("%v\n%s", err, strings.Join(lines[max(0, len(lines)-40):], ""))
}

var isClusterScript = regexp.MustCompile(`(?m)^cluster\b`)

// script is a life of workers whose events are the lines of a text.
type script struct {
	*workersLife

	act     *world.Actor // of the script
	calls   map[string]*scriptCall
	batches map[string]*scriptBatch
	harvest uint64           // number of the last one
	holds   [][2]*world.Host // that may be in force
	expects string           // the violation that ends the life; empty: none
}

// scriptCall is a call that a script has begun.
type scriptCall struct {
	caller   *caller
	returned bool
	cancel   func()
}

type scriptBatch struct {
	session *session
	*preparedBatch
}

// liveScript runs a script and returns its trace.
func liveScript(t *testing.T, name, text string, seed uint64) (trace string, err error) {
	var out bytes.Buffer
	if isClusterScript.MatchString(text) {
		err := liveClusterScript(t, name, text, Options{Seed: seed, Trace: &out})
		return out.String(), err
	}
	Workers.labelled(Options{Seed: seed}, func() {
		InTest(t)(func() {
			s := newScript(Options{Seed: seed, Trace: &out})
			err = s.runLines(name, text)
		})
	})
	return out.String(), err
}

func newScript(o Options) *script {
	s := &workersLife{options: o, plan: plan{
		kinds:   Loss, // scripts lose frames, so repetitions are not counted
		workers: 2, dim: 1, hot: 4, cold: 4, stripes: 1, payload: 300, window: 16, callers: 1, inbox: 4096, delay: 1,
		exp: ps.DefaultExp,
	}}
	s.plan.flow.Size = s.plan.window
	return &script{workersLife: s, calls: map[string]*scriptCall{}, batches: map[string]*scriptBatch{}}
}

// runLines runs the lines: those that describe the life, and then the others, in turns of an actor.
func (s *script) runLines(name, text string) error {
	lines := strings.Split(text, "\n")
	first, err := s.readDescription(name, lines)
	if err != nil {
		return err
	}
	s.World = world.New(world.Options{
		Seed: world.Seed(s.options.Seed), Trace: s.options.Trace, Life: s, Bound: bound, Conditions: s.plan.worldConditions(),
	})
	if err := s.setUp(); err != nil {
		return err
	}
	for _, w := range s.workers {
		w.left, w.begin = 0, func(*session) {}
	}
	s.act = s.NewActor("script", nil)
	commands := compiled(workerCommands)
	s.act.Start(func() {
		for i, line := range lines[first:] {
			doLine(s, s.World, commands, fmt.Sprintf("%s:%d", name, first+i+1), line)
			if s.Over() || s.Failed() {
				return
			}
		}
		s.finishLife()
	})
	s.Run(func() bool { return s.act.Gone() && s.Idle() })
	s.checkEnd()
	s.End()
	err = violation(s.options, s.World)
	switch {
	case s.expects == "":
		return err
	case err == nil || !strings.Contains(err.Error(), s.expects):
		return fmt.Errorf("%s: the violation %q is expected, there is %s", name, s.expects, fmt.Sprint(err))
	}
	return nil
}

// readDescription reads the lines before the first event, and returns their number.
func (s *script) readDescription(name string, lines []string) (n int, err error) {
	for n, line := range lines {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(line, "#"):
		case words[0] == "fault":
			s.options.fault = fault(strings.TrimPrefix(line, "fault "))
		case words[0] == "life":
			for i := 1; i+1 < len(words); i += 2 {
				if err := s.setProperty(words[i], words[i+1]); err != nil {
					return 0, fmt.Errorf("%s:%d: %w", name, n+1, err)
				}
			}
		default:
			return n, nil
		}
	}
	return len(lines), nil
}

func (s *script) setProperty(property, value string) error {
	if property == "silence" {
		limit, err := time.ParseDuration(value)
		s.plan.flow.Silence = limit
		return err
	}
	n, err := strconv.Atoi(value)
	at := map[string]*int{
		"exponent": &s.plan.exp, "full": &s.plan.full, "positive": &s.plan.positive,
		"workers": &s.plan.workers, "dim": &s.plan.dim, "hot": &s.plan.hot, "cold": &s.plan.cold, "window": &s.plan.window,
	}[property]
	if err != nil || n < 1 && property != "exponent" || at == nil {
		return fmt.Errorf("%s %s: no such property of a life", property, value)
	}
	*at = n
	s.plan.flow.Size = s.plan.window
	return nil
}

// finishLife ends the trouble and all sessions, and brings the last harvests.
func (s *script) finishLife() {
	for _, h := range s.holds {
		s.Net.Release(h[0], h[1])
	}
	s.Heal()
	for _, w := range s.workers {
		if l := w.session; l != nil && l.callers > 0 {
			if err := s.leaveJob(w); err != nil {
				s.Fail("%v", err)
			}
		}
	}
	for range s.ledger.banks {
		if err := s.harvestNow(false); err != nil && !s.Over() {
			s.Fail("%v", err)
		}
	}
}

// doLine executes a line of a script by one of its commands. What is wrong about it is a violation,
// which names the line.
func doLine[S any](s S, w *world.World, commands map[*regexp.Regexp]func(S, []string) error, place, line string) {
	line, _, _ = strings.Cut(line, "#")
	if line = strings.TrimSpace(line); line == "" {
		return
	}
	w.Trace("-- %s: %s\n", place, line)
	for pattern, do := range commands {
		m := pattern.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if err := do(s, m[1:]); err != nil && !w.Over() {
			w.Fail("%s: %v", place, err)
		}
		return
	}
	w.Fail("%s: unknown command %q", place, line)
}

// compiled compiles the patterns of commands.
func compiled[S any](commands map[string]func(S, []string) error) map[*regexp.Regexp]func(S, []string) error {
	all := map[*regexp.Regexp]func(S, []string) error{}
	for pattern, do := range commands {
		all[regexp.MustCompile("^"+pattern+"$")] = do
	}
	return all
}
