// SPDX-License-Identifier: Apache-2.0

package placement

import "slices"

// Algorithm1 is PARAMETER_ORCHESTRATING of the paper's §3.4 as printed: it
// distributes a batch of gradients over packets of the given capacity so that,
// as far as possible, no two gradients of a packet live in the same of m
// registers. Line numbers are the paper's. It is the reference for the fast
// [Orchestrator].
//
// The paper leaves some details open: here, Estimate_packets is the number of full
// packets that hold the batch; first() is the candidate that was created first; and
// create_pkt_padding fills as many packets as needed in the order of G', the last
// of which the sender pads.
func Algorithm1(batch []Gradient, m, capacity int) [][]Gradient {
	packets := make([][]Gradient, estimatePackets(len(batch), capacity)) // line 1
	var rest []Gradient                                                  // line 2, G'
	open := make([]int, len(packets))                                    // line 2, P1: packets that are not full
	for i := range open {
		open[i] = i
	}
	for _, theta := range batch { // line 3
		k := theta.Rank % uint32(m)                                   // line 4
		candidates := slices.Clone(open)                              // line 5, P2
		inserted := false                                             // line 6
		same := packetsWithRegister(packets, k, m)                    // line 7
		candidates = slices.DeleteFunc(candidates, func(i int) bool { // lines 8-9
			return slices.Contains(same, i)
		})
		if len(candidates) > 0 { // lines 10-11
			i := candidates[0]
			packets[i] = append(packets[i], theta) // lines 12-14
			inserted = true                        // line 15
			if len(packets[i]) == capacity {       // lines 16-17
				open = slices.DeleteFunc(open, func(j int) bool { return j == i })
			}
		}
		if !inserted { // lines 19-20
			rest = append(rest, theta)
		}
	}
	if len(rest) > 0 { // lines 22-23
		packets = append(packets, createPacketsPadding(rest, capacity)...)
	}
	return packets // line 25
}

// estimatePackets returns the least number of packets for n gradients.
func estimatePackets(n, capacity int) int { return (n + capacity - 1) / capacity }

// packetsWithRegister is same_reg_pkt_find: the packets that already carry a gradient
// of register k.
func packetsWithRegister(packets [][]Gradient, k uint32, m int) []int {
	var same []int
	for i, packet := range packets {
		if slices.ContainsFunc(packet, func(g Gradient) bool { return g.Rank%uint32(m) == k }) {
			same = append(same, i)
		}
	}
	return same
}

// createPacketsPadding is create_pkt_padding: new packets for the gradients
// that fitted none, regardless of their registers.
func createPacketsPadding(rest []Gradient, capacity int) [][]Gradient {
	return slices.Collect(slices.Chunk(rest, capacity))
}
