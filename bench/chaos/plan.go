// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Life is one training with its troubles, as a seed decides it.
type Life struct {
	Seed    uint64 `json:"seed"`
	Workers int    `json:"workers"`
	Batch   int    `json:"batch"` // rows of a worker's step
	Epochs  int    `json:"epochs"`
	Rows    int    `json:"rows"`
	HotRows int    `json:"hot_rows"`
	// LogMiB is job.replay_mib.
	LogMiB int `json:"replay_mib"`

	// Probabilities of what the network does to a frame.
	Loss      float64 `json:"loss"`
	Duplicate float64 `json:"duplicate"`
	Reorder   float64 `json:"reorder"`
	Late      float64 `json:"late"`
	Corrupt   float64 `json:"corrupt"`

	Troubles []Trouble `json:"troubles"` // in the order of their steps
}

// Trouble is one thing that happens.
type Trouble struct {
	Kind Kind `json:"kind"`
	// Step is the step that has to be open, and After the time from then until it happens.
	Step  uint64        `json:"step"`
	After time.Duration `json:"after_ns"`
	// Lasts is until it ends, or until what was killed is started again.
	Lasts time.Duration `json:"lasts_ns"`
	// On is whom it befalls, and To the other end of a partition, or who dies with On.
	On Role `json:"on"`
	To Role `json:"to,omitempty"`
	// MTU is the MTU of that kind.
	MTU int `json:"mtu,omitempty"`
}

func (t Trouble) String() string {
	text := fmt.Sprintf("%s of %s", t.Kind, t.On)
	switch t.Kind {
	case Partition:
		text += " to " + string(t.To)
	case PairKill:
		text += " and " + string(t.To)
	case MTU:
		text += fmt.Sprintf(" (%d)", t.MTU)
	case SwitchDrain, MAC:
		return text
	}
	return fmt.Sprintf("%s for %v", text, t.Lasts)
}

// Role is a process of the cluster, or its host: "server", "worker 1", or one of the two below.
type Role string

// Which of the two aggregators has the job is known when a trouble begins.
const (
	Holder Role = "the job's aggregator"
	Spare  Role = "the other aggregator"
	Server Role = "the server"
)

// Worker returns the role of a worker, from 1 on.
func Worker(id int) Role { return Role(fmt.Sprintf("worker %d", id)) }

const (
	// stepsOfTrouble is the number of steps for each trouble.
	stepsOfTrouble = 100
	// atOnce is the chance, one in this number, that a trouble begins in the same step as the one
	// before.
	atOnce = 4
	// longestMoment is the longest time from the beginning of a step to its trouble.
	longestMoment = 200 * time.Millisecond
)

// mtus are those of [MTU]. The first two do not carry a job's frames: a process that starts
// meanwhile waits.
var mtus = []int{600, 1200, 1400, 2000}

// Plan returns the life of a seed, of about this many steps, with these kinds of trouble only. The
// same arguments give the same life.
func Plan(seed uint64, steps int, only []Kind) Life {
	rng := rand.New(rand.NewPCG(seed, 0xc4a05))
	l := Life{Seed: seed, Workers: 2 + rng.IntN(2), Batch: 8 + rng.IntN(25), Epochs: 1 + rng.IntN(3),
		HotRows: 100 + rng.IntN(900), LogMiB: 1 + rng.IntN(4)}
	// The workers' parts may differ by a row, or a mini-batch.
	l.Rows = max(l.Workers, steps/l.Epochs*l.Batch*l.Workers+rng.IntN(l.Batch))
	for _, p := range []struct {
		kind  Kind
		value *float64
		most  float64
	}{{Loss, &l.Loss, 0.03}, {Duplicate, &l.Duplicate, 0.03}, {Reorder, &l.Reorder, 0.03}, {Late, &l.Late, 0.02},
		{Corrupt, &l.Corrupt, 0.02}} {
		value := p.most * rng.Float64() * rng.Float64() // mostly small
		if slices.Contains(only, p.kind) {
			*p.value = value
		}
	}
	lot := 0
	for _, k := range kinds {
		if slices.Contains(only, k.kind) {
			lot += k.weight
		}
	}
	if lot == 0 {
		return l
	}
	at := make([]uint64, max(1, steps/stepsOfTrouble))
	for i := range at {
		at[i] = uint64(steps)/20 + rng.Uint64N(max(1, uint64(steps)*17/20))
	}
	slices.Sort(at)
	for i, step := range at {
		if i > 0 && rng.IntN(atOnce) == 0 {
			step = l.Troubles[i-1].Step
		}
		l.Troubles = append(l.Troubles, l.trouble(rng, step, rng.IntN(lot), only))
	}
	return l
}

// trouble draws one.
func (l *Life) trouble(rng *rand.Rand, step uint64, lot int, only []Kind) Trouble {
	t := Trouble{Step: step, After: between(rng, time.Microsecond, longestMoment)}
	for _, k := range kinds {
		if !slices.Contains(only, k.kind) {
			continue
		}
		if lot -= k.weight; lot < 0 {
			t.Kind = k.kind
			if k.most > 0 {
				t.Lasts = between(rng, k.least, k.most)
			}
			break
		}
	}
	worker := Worker(1 + rng.IntN(l.Workers))
	hosts := []Role{Holder, Spare, Server, worker, worker} // most links are workers'
	rng.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	switch t.Kind {
	case SwitchKill, SwitchPause, SwitchRestart:
		if t.On = Holder; rng.IntN(4) == 0 {
			t.On = Spare
		}
	case SwitchDrain:
		t.On = Holder
	case WorkerKill, WorkerPause:
		t.On = worker
	case PairKill:
		t.On, t.To = Holder, worker
	case ServerPause, ServerKill:
		t.On = Server
	case Partition:
		t.On, t.To = hosts[0], hosts[1]
		if t.On == t.To {
			t.To = hosts[2]
		}
	case Flap, MAC:
		t.On = hosts[0]
	case MTU:
		t.On, t.MTU = hosts[0], mtus[rng.IntN(len(mtus))]
	}
	return t
}

// between draws a time whose logarithm is uniform, so that short ones are as frequent as long ones.
func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return time.Duration(float64(least) * math.Pow(float64(most)/float64(least), rng.Float64())).Round(time.Microsecond)
}
