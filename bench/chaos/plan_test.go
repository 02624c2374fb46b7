// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A seed decides a life, whatever ran before, and another seed another one.
func TestSeedDecidesLife(t *testing.T) {
	a, b := Plan(7, 2000, Kinds()), Plan(7, 2000, Kinds())
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("the same seed:\n%s", diff)
	}
	if cmp.Equal(a.Troubles, Plan(8, 2000, Kinds()).Troubles) {
		t.Error("two seeds have the same troubles")
	}
}

// Every kind is reached, with all that it may befall, and no other than those that were asked for.
func TestPlansReachEverything(t *testing.T) {
	seen := map[Kind]map[Role]bool{}
	var most [5]float64 // probabilities
	longest := 0.0      // of what is allowed
	atOnce := false
	for seed := range uint64(2000) {
		only := Kinds()
		if seed%2 == 1 {
			only = []Kind{Kinds()[int(seed/2)%len(Kinds())], Flap}
		}
		l := Plan(seed, 1500, only)
		if n := len(l.Troubles); n != 15 {
			t.Fatalf("seed %d: %d troubles", seed, n)
		}
		for i, p := range []struct {
			kind  Kind
			value float64
		}{{Loss, l.Loss}, {Duplicate, l.Duplicate}, {Reorder, l.Reorder}, {Late, l.Late}, {Corrupt, l.Corrupt}} {
			if p.value > 0 != slices.Contains(only, p.kind) {
				t.Fatalf("seed %d: %v has a probability of %v, of %v", seed, p.kind, p.value, only)
			}
			most[i] = max(most[i], p.value)
		}
		for i, x := range l.Troubles {
			if !slices.Contains(only, x.Kind) {
				t.Fatalf("seed %d: %v of %v", seed, x, only)
			}
			if seen[x.Kind] == nil {
				seen[x.Kind] = map[Role]bool{}
			}
			seen[x.Kind][x.On], seen[x.Kind][x.To] = true, true
			if i > 0 {
				before := l.Troubles[i-1]
				if x.Step < before.Step {
					t.Fatalf("seed %d: step %d after %d", seed, x.Step, before.Step)
				}
				atOnce = atOnce || x.Step == before.Step
			}
			if x.Step < 75 || x.Step > 1350 || x.On == x.To {
				t.Fatalf("seed %d: step %d, %v", seed, x.Step, x)
			}
			k := kinds[slices.Index(Kinds(), x.Kind)]
			if x.Lasts < k.least || x.Lasts > k.most {
				t.Fatalf("seed %d: %v, of %v to %v", seed, x, k.least, k.most)
			}
			if k.most > 0 {
				longest = max(longest, float64(x.Lasts)/float64(k.most))
			}
		}
	}
	links := []Role{Holder, Spare, Server, Worker(1), Worker(2), Worker(3)}
	want := map[Kind][]Role{
		SwitchKill: {Holder, Spare}, SwitchPause: {Holder, Spare}, SwitchRestart: {Holder, Spare}, SwitchDrain: {Holder},
		WorkerKill: links[3:], WorkerPause: links[3:], PairKill: append([]Role{Holder}, links[3:]...),
		ServerPause: {Server}, ServerKill: {Server}, Partition: links, Flap: links, MTU: links, MAC: links,
	}
	for kind, roles := range want {
		for _, role := range roles {
			if !seen[kind][role] {
				t.Errorf("%v never befalls %v", kind, role)
			}
		}
	}
	if !atOnce || longest < 0.9 || slices.Min(most[:]) < 0.01 {
		t.Errorf("two in a step: %v; longest %v of what is allowed; probabilities %v", atOnce, longest, most[:])
	}
}

// Lives of few steps have a trouble, those without kinds none.
func TestPlansOfFewKinds(t *testing.T) {
	if l := Plan(1, 100, []Kind{WorkerKill}); len(l.Troubles) != 1 || l.Loss != 0 || l.Late != 0 {
		t.Errorf("%+v", l)
	}
	if l := Plan(1, 1500, nil); l.Troubles != nil {
		t.Errorf("%+v", l.Troubles)
	}
}

func TestParseKinds(t *testing.T) {
	for names, want := range map[string][]Kind{
		"": Kinds(), "none": {}, "worker-kill,loss": {Loss, WorkerKill}, "none,mtu": {MTU}, "server-kill": {ServerKill},
	} {
		var list []string
		if names != "" {
			list = strings.Split(names, ",")
		}
		if got, err := ParseKinds(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", names, got, err)
		}
	}
	if _, err := ParseKinds([]string{"loss", "flood"}); err == nil || !strings.Contains(err.Error(), `"flood": choose of none, loss,`) {
		t.Error(err)
	}
}

// The command that repeats a life names all that the life depends on.
func TestReplay(t *testing.T) {
	c := Defaults()
	if got := c.Replay(9); got != "libra chaos --seed 9" {
		t.Error(got)
	}
	c.Steps, c.Kinds = 300, []Kind{Loss, MAC}
	if got := c.Replay(9); got != "libra chaos --seed 9 --steps 300 --only loss,mac" {
		t.Error(got)
	}
	if c.Kinds = nil; !strings.HasSuffix(c.Replay(9), " --only none") {
		t.Error(c.Replay(9))
	}
}

func TestFieldsAreChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"lives: 0 is not from 1":         func(c *Config) { c.Lives = 0 },
		"minutes: 1ms is not from 1s":    func(c *Config) { c.Duration = time.Millisecond },
		"steps: 99 is not from 100 to 1": func(c *Config) { c.Steps = 99 },
	} {
		c := Defaults()
		change(&c)
		if err := c.checkFields(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
