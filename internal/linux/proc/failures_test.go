// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// script is a child that runs lines of a shell.
func script(lines string) *exec.Cmd { return exec.Command("sh", "-c", lines) }

// lost recognises children that ended because another had.
func lost(e *ExitError) bool {
	return len(e.Stderr) > 0 && strings.Contains(e.Stderr[len(e.Stderr)-1], "has left")
}

// TestCauseIsFirst has victims that are gone before the child whose failure ends them.
func TestCauseIsFirst(t *testing.T) {
	const cause = "trap 'echo asked to end >&2' TERM; sleep 0.4; echo the reason >&2; exit 3"
	for name, test := range map[string]struct {
		order      []string // scripts, in the order of the start
		first      string   // the name of the child that is the cause
		text, none string
	}{
		"victim first": {
			order: []string{"sleep 0.1; echo one; echo two >&2; echo rank 1 has left >&2; exit 1", cause},
			first: "child 1",
			text: "child 1 exited with status 3; last lines of its standard error:\n  the reason\n" +
				"and child 0 exited with status 1; last lines of its standard error:\n  two\n  rank 1 has left",
		},
		"victims on both sides": {
			order: []string{"sleep 0.1; echo 1 has left >&2; exit 1", cause, "sleep 0.2; echo 0 has left >&2; exit 1"},
			first: "child 1",
			text:  "and child 2 exited with status 1; last lines of its standard error:\n  0 has left",
		},
		"only victims": {
			order: []string{"sleep 0.1; echo 1 has left >&2; exit 1", "sleep 0.2; echo 0 has left >&2; exit 1"},
			first: "child 0",
			text:  "and child 1 exited with status 1",
		},
		"long output of the others": {
			order: []string{"sleep 0.1; echo reason >&2; exit 2", "sleep 0.3; for i in 1 2 3 4; do echo line $i >&2; done; echo 0 has left >&2; exit 1"},
			first: "child 0",
			text:  "and child 1 exited with status 1; last lines of its standard error:\n  line 3\n  line 4\n  0 has left",
			none:  "line 2",
		},
		"a signal": {
			order: []string{"sleep 0.1; echo 1 has left >&2; exit 1", "sleep 0.2; kill -9 $$"},
			first: "child 1",
			text:  "child 1 was ended by a signal (killed); it wrote nothing to standard error\nand child 0 exited with status 1",
		},
		"the rest succeeds": {
			order: []string{"sleep 0.4", "sleep 0.1; echo reason >&2; exit 2"},
			first: "child 1",
			text:  "child 1 exited with status 2; last lines of its standard error:\n  reason",
			none:  "and child",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, end := range []string{"wait", "stop"} {
				var told []error
				g := NewGroup(t.Context(), Config{
					Failures: NewFailures(lost), Failed: func(err error) { told = append(told, err) }, Grace: time.Minute,
				})
				var children []*Child
				for i, lines := range test.order {
					children = append(children, mustStart(t, g, Spec{Name: "child " + string(rune('0'+i)), Cmd: script(lines), Plain: true}))
				}
				err := g.Wait
				if end == "stop" { // as the demo does: when it sees the first failure
					for _, c := range children {
						if c.Wait(t.Context()) != nil {
							break
						}
					}
					err = g.Stop
				}
				got := err()
				var exit *ExitError
				if !errors.As(got, &exit) || exit.Name != test.first {
					t.Errorf("%s: first is %v, want %s", end, got, test.first)
				}
				if got != nil && (!strings.Contains(got.Error(), test.text) || test.none != "" && strings.Contains(got.Error(), test.none)) {
					t.Errorf("%s: %q, want %q and not %q", end, got, test.text, test.none)
				}
				if len(told) != 1 || !errors.Is(told[0], got) {
					t.Errorf("%s: told %v, want once %v", end, told, got)
				}
			}
		})
	}
}

// Children that go on do not delay the decision for long, and are then stopped.
func TestOthersAreWaitedForBriefly(t *testing.T) {
	g := NewGroup(t.Context(), Config{Grace: time.Minute})
	mustStart(t, g, Spec{Name: "goes on", Cmd: script("sleep 3600")})
	mustStart(t, g, Spec{Name: "fails", Cmd: script("exit 3")})
	var exit *ExitError
	if err := g.Wait(); !errors.As(err, &exit) || exit.Name != "fails" || strings.Contains(err.Error(), "goes on") {
		t.Errorf("got %v", err)
	}
}

// Groups with the same failures have one cause: the agent's, not that of the workers which lost it.
func TestGroupsShareTheCause(t *testing.T) {
	shared := NewFailures(lost)
	agents := NewGroup(t.Context(), Config{Failures: shared})
	workers := NewGroup(t.Context(), Config{Failures: shared})
	mustStart(t, agents, Spec{Name: "agent", Cmd: script("sleep 0.3; echo no memory >&2; exit 1"), Service: true})
	worker := mustStart(t, workers, Spec{Name: "worker", Cmd: script("sleep 0.1; echo the agent has left >&2; exit 1")})
	mustStart(t, workers, Spec{Name: "other", Cmd: script("sleep 0.1; echo the agent has left >&2; exit 1")})
	mustStart(t, workers, Spec{Name: "busy", Cmd: script("sleep 3600")})
	if worker.Wait(t.Context()) == nil {
		t.Error("the worker succeeds")
	}
	for _, g := range []*Group{workers, agents} {
		var exit *ExitError
		if err := g.Stop(); !errors.As(err, &exit) || exit.Name != "agent" || !strings.Contains(err.Error(), "and worker exited") {
			t.Errorf("got %v, want the agent's failure and the workers'", err)
		}
	}
}
