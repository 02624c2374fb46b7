// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"strings"
)

// Kinds is a set of kinds of trouble.
type Kinds uint32

// What a life can meet.
const (
	Loss      Kinds = 1 << iota // frames vanish
	Duplicate                   // the network delivers a frame twice
	Reorder                     // frames overtake each other
	Late                        // copies of frames that come after seconds
	Corrupt                     // bits of frames turn over
	Partition                   // one host's frames to another vanish for a while
	Pause                       // a process stands still for a while
	Crash                       // a worker's process vanishes, and joins anew
	Evict                       // a worker's admission ends while it pushes
	Cancel                      // callers give up
	Queue                       // queues of links are full, and waits end early
	Silence                     // workers soon give a silent peer up

	All Kinds = 1<<iota - 1
)

// What only the life of a cluster can meet.
const (
	Reset     Kinds = 1 << (12 + iota) // a control connection breaks, at both ends or at one
	Power                              // a machine loses power, with what its disk had not synced
	Stop                               // a process is told to end, and started again
	Hostile                            // a stranger on a host of the job sends frames and answers
	Neighbour                          // another job on the same switch trains, is killed and begins anew

	ClusterAll = All | Reset | Power | Stop | Hostile | Neighbour
)

var kindNames = [...]string{
	"loss", "duplicate", "reorder", "late", "corrupt", "partition", "pause", "crash", "evict", "cancel", "queue", "silence", "reset", "power", "stop", "hostile", "neighbour",
}

// KindNames lists what [ParseKinds] takes.
func KindNames() []string { return append([]string{"none"}, kindNames[:]...) }

// ParseKinds reads a list of names with commas between them. Empty means all.
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

// MarshalText writes what [ParseKinds] reads.
func (k Kinds) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
