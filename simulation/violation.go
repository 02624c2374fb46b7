// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Violation is the first wrong state or answer in a life.
type Violation struct {
	Life    Life          `json:"life"`
	Options Options       `json:"options"`
	Step    int64         `json:"step"`
	At      time.Duration `json:"at_ns"` // virtual time
	What    string        `json:"what"`
}

func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d, step %d, %v: %s", v.Options.Seed, v.Step, v.At, v.What)
}

// Life is a kind of life.
type Life string

// The kinds of life.
const (
	Workers  Life = "workers"
	Clusters Life = "clusters"
	Agents   Life = "agents"
	Reducers Life = "reducers"
	Rings    Life = "rings"
)

// live runs a life of a kind, and returns its violation, nil if it has none. An error is about the
// simulation, not the life.
func (l Life) live(in Bubble, o Options, r *Report) (*Violation, error) {
	var err error
	switch l {
	case Clusters:
		var one ClusterResult
		one, err = RunCluster(in, o)
		r.Clusters.Add(one)
	case Agents:
		var one AgentsResult
		one, err = RunAgents(in, o)
		r.Agents.Add(one)
	case Reducers:
		var one ReducersResult
		one, err = RunReducers(in, o)
		r.Reducers.Add(one)
	case Rings:
		var one RingsResult
		one, err = RunRings(in, o)
		r.Rings.Add(one)
	default:
		var one Result
		one, err = Run(in, o)
		r.Workers.Add(one)
	}
	if v := (*Violation)(nil); errors.As(err, &v) {
		v.Life = l
		return v, nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", o.Replay(l), err)
	}
	return nil, err
}

// Cut makes the life of a seed smaller. Its zero value does not change it.
type Cut struct {
	// Without lists trouble that does not occur, by its number in the plan.
	Without []int `json:"without,omitempty"`
	// Workers is the largest number of workers; 0: the seed's.
	Workers int `json:"workers,omitempty"`
	// Halves is how often the work is halved: calls, rows of data, or steps.
	Halves int `json:"halves,omitempty"`
	// Once limits a cluster to its first training.
	Once bool `json:"once,omitempty"`
}

func (c Cut) none() bool { return !c.Once && c.Workers+c.Halves+len(c.Without) == 0 }

// most is the largest number of troubles in a life's plan, apart from trouble of frames.
const most = 10

// Shortest searches for a smaller life that also has a violation: with less trouble, fewer workers,
// less work. It returns the smallest one found until ctx ends.
func (v *Violation) Shortest(ctx context.Context, in Bubble) *Violation {
	best := v
	try := func(change func(*Options)) bool {
		o := best.Options
		o.Cut.Without = slices.Clone(o.Cut.Without)
		change(&o)
		if ctx.Err() != nil {
			return false
		}
		smaller, err := v.Life.live(in, o, &Report{})
		if err != nil || smaller == nil {
			return false
		}
		best = smaller
		return true
	}
	for before := (*Violation)(nil); before != best; {
		before = best
		if v.Life == Clusters && !best.Options.Cut.Once {
			try(func(o *Options) { o.Cut.Once = true })
		}
		for n := 1; n < cmp.Or(best.Options.Cut.Workers, 3) && !try(func(o *Options) { o.Cut.Workers = n }); n++ {
		}
		for k := Kinds(1); k <= ClusterAll; k <<= 1 {
			if best.Options.Kinds&k != 0 {
				try(func(o *Options) { o.Kinds &^= k })
			}
		}
		for n := range most {
			if !slices.Contains(best.Options.Cut.Without, n) {
				try(func(o *Options) { o.Cut.Without = append(o.Cut.Without, n) })
			}
		}
		for best.Options.Cut.Halves < 6 && try(func(o *Options) { o.Cut.Halves++ }) {
		}
	}
	return best
}

// Test returns a Go test that runs the life again.
func (v *Violation) Test() string {
	run := map[Life]string{
		Workers: "Run", Clusters: "RunCluster", Agents: "RunAgents", Reducers: "RunReducers", Rings: "RunRings",
	}[v.Life]
	kinds := "0"
	if v.Options.Kinds != 0 {
		names := strings.Split(v.Options.Kinds.String(), ",")
		for i, name := range names {
			names[i] = "simulation." + strings.ToUpper(name[:1]) + name[1:]
		}
		kinds = strings.Join(names, " | ")
	}
	cut := ""
	if c := v.Options.Cut; !c.none() {
		cut = fmt.Sprintf(", Cut: %#v", c)
	}
	return fmt.Sprintf(`func TestSeed%d(t *testing.T) {
	_, err := simulation.%s(simulation.InTest(t), simulation.Options{Seed: %d, Kinds: %s%s})
	if err != nil {
		t.Fatal(err)
	}
}
`, v.Options.Seed, run, v.Options.Seed, kinds, cut)
}
