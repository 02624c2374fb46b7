// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"strings"
)

// Kinds is a set of kinds of trouble.
type Kinds uint32

// Trouble of any life.
const (
	Loss      Kinds = 1 << iota // frames vanish
	Duplicate                   // the network delivers a frame twice
	Reorder                     // frames overtake each other
	Late                        // copies of frames arrive seconds later
	Corrupt                     // bits of frames are flipped
	Partition                   // frames from one host to another vanish for a while
	Pause                       // a process is suspended for a while
	Crash                       // a worker's process vanishes, and joins again
	Evict                       // a worker's admission ends while it pushes
	Cancel                      // callers give up
	Queue                       // queues of links are full, and waits end early
	Silence                     // workers give up a silent peer early

	All Kinds = 1<<iota - 1
)

// Trouble only of a cluster's life.
const (
	Reset     Kinds = 1 << (12 + iota) // a control connection breaks, at both ends or at one
	Power                              // a machine loses power, with unsynced data on its disk
	Stop                               // a process is told to end, and restarted
	Hostile                            // a stranger on a host of the job sends frames and answers
	Neighbour                          // another job on the same switch trains, is killed and starts again
	Outage                             // a host's link is down for up to 15 seconds
	Fence                              // the switch vanishes in the middle of a training, which goes on without it
	Standby                            // there are other switches, at which the training goes on
	Drain                              // an operator moves the training to another switch, or to none
	Rewind                             // workers or the server vanish in a training, which goes on when they are back

	ClusterAll = All | Reset | Power | Stop | Hostile | Neighbour | Outage | Fence | Standby | Drain | Rewind
)

var kindNames = [...]string{
	"loss", "duplicate", "reorder", "late", "corrupt", "partition", "pause", "crash", "evict", "cancel",
	"queue", "silence", "reset", "power", "stop", "hostile", "neighbour",
	"outage", "fence", "standby", "drain", "rewind",
}

// KindNames lists the names that [ParseKinds] accepts.
func KindNames() []string { return append([]string{"none"}, kindNames[:]...) }

// ParseKinds parses a list of names, separated by commas. Empty means all.
func ParseKinds(list string) (Kinds, error) {
	if list == "" {
		return ClusterAll, nil
	}
	var k Kinds
next:
	for name := range strings.SplitSeq(list, ",") {
		for i, known := range kindNames {
			if name == known {
				k |= 1 << i
				continue next
			}
		}
		if name != "none" {
			return 0, fmt.Errorf("unknown kind of trouble %q: choose of %s", name, strings.Join(KindNames(), ", "))
		}
	}
	return k, nil
}

func (k Kinds) String() string {
	var names []string
	for i, name := range kindNames {
		if k&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ",")
}

// MarshalText writes the format of [ParseKinds].
func (k Kinds) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
