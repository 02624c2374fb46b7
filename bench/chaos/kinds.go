// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind is a kind of trouble.
type Kind string

// What the network does to frames, for a whole life.
const (
	Loss      Kind = "loss"      // workers' frames and those for them vanish
	Duplicate Kind = "duplicate" // they arrive twice
	Reorder   Kind = "reorder"   // they overtake each other
	Late      Kind = "late"      // copies of any host's frames arrive up to seconds later
	Corrupt   Kind = "corrupt"   // copies of any host's frames have a flipped bit
)

// What happens at a step.
const (
	SwitchKill    Kind = "switch-kill"    // an aggregator's daemon is killed (-9), and started again
	SwitchPause   Kind = "switch-pause"   // it is suspended for a while
	SwitchRestart Kind = "switch-restart" // it is told to end, and started again
	SwitchDrain   Kind = "switch-drain"   // an operator moves the job to another aggregator
	WorkerKill    Kind = "worker-kill"    // a worker is killed, and started again
	WorkerPause   Kind = "worker-pause"   // a worker is suspended for a while
	PairKill      Kind = "pair-kill"      // the job's aggregator and a worker are killed at once
	ServerPause   Kind = "server-pause"   // the server is suspended for a while
	ServerKill    Kind = "server-kill"    // the server is killed, and started again
	Partition     Kind = "partition"      // what one host sends to another is lost for a while
	Flap          Kind = "flap"           // a host's link is down for a while
	MTU           Kind = "mtu"            // a host's MTU is another one for a while
	MAC           Kind = "mac"            // a host's Ethernet address changes
)

// kinds are all kinds.
var kinds = []struct {
	kind Kind
	// weight is how often a trouble is of the kind, relative to the others; 0: the kind is of the
	// whole life.
	weight int
	// least and most are how long a trouble lasts, or how long a killed process is not started again.
	least, most time.Duration
}{
	{kind: Loss}, {kind: Duplicate}, {kind: Reorder}, {kind: Late}, {kind: Corrupt},
	{kind: SwitchKill, weight: 6, least: time.Millisecond, most: 3 * time.Second},
	{kind: SwitchPause, weight: 2, least: 50 * time.Millisecond, most: 4 * time.Second},
	{kind: SwitchRestart, weight: 1, least: time.Millisecond, most: time.Second},
	{kind: SwitchDrain, weight: 1},
	{kind: WorkerKill, weight: 6, least: time.Millisecond, most: 4 * time.Second},
	{kind: WorkerPause, weight: 2, least: 50 * time.Millisecond, most: 5 * time.Second},
	{kind: PairKill, weight: 3, least: time.Millisecond, most: 3 * time.Second},
	{kind: ServerPause, weight: 1, least: 50 * time.Millisecond, most: 2 * time.Second},
	{kind: ServerKill, weight: 4, least: time.Millisecond, most: 3 * time.Second},
	{kind: Partition, weight: 2, least: 50 * time.Millisecond, most: 5 * time.Second},
	{kind: Flap, weight: 2, least: 50 * time.Millisecond, most: 5 * time.Second},
	{kind: MTU, weight: 1, least: 50 * time.Millisecond, most: 2500 * time.Millisecond},
	{kind: MAC, weight: 1},
}

// Kinds lists all kinds.
func Kinds() []Kind {
	all := make([]Kind, len(kinds))
	for i, k := range kinds {
		all[i] = k.kind
	}
	return all
}

// Names are the names of all kinds, and "none".
func Names() []string {
	names := []string{"none"}
	for _, k := range kinds {
		names = append(names, string(k.kind))
	}
	return names
}

// ParseKinds returns the kinds of some names, in the order of [Kinds]. No names mean all.
func ParseKinds(names []string) ([]Kind, error) {
	if len(names) == 0 {
		return Kinds(), nil
	}
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("unknown kind of trouble %q: choose of %s", name, strings.Join(Names(), ", "))
		}
	}
	return slices.DeleteFunc(Kinds(), func(k Kind) bool { return !slices.Contains(names, string(k)) }), nil
}
