// SPDX-License-Identifier: Apache-2.0

package packer

import "math/bits"

// Split is the number of parameter servers among which the rows of a job are split; 0 means 1. Hot
// rows belong to server 0, which receives the aggregator's sums. A hash distributes the others
// evenly, whatever the keys are.
//
// Workers, servers and readers of their checkpoints must have the same split and,
// because of the hot rows, the same hot set.
type Split int

// Of returns the index of the server of a cold row: the upper 64 bits of the product of the
// hashed key and the number of servers. The hash is the output function of splitmix64
// (Steele, Lea and Flood 2014).
func (n Split) Of(key uint64) int {
	key = (key ^ key>>30) * 0xbf58476d1ce4e5b9
	key = (key ^ key>>27) * 0x94d049bb133111eb
	server, _ := bits.Mul64(key^key>>31, uint64(n))
	return int(server)
}

// Owner returns the index of the server of a row. hot may be nil.
func (n Split) Owner(hot *HotSet, key uint64) int {
	if n <= 1 {
		return 0
	}
	if hot != nil {
		if _, ok := hot.Rank(key); ok {
			return 0
		}
	}
	return n.Of(key)
}

// Order appends the positions of keys, sorted stably by server, to order, and the end of each
// server's list to ends. It keeps nothing, and is safe for concurrent use.
func (n Split) Order(hot *HotSet, keys []uint64, order []uint32, ends []int) ([]uint32, []int) {
	first := len(ends)
	for range n {
		ends = append(ends, 0)
	}
	counts := ends[first:]
	for _, key := range keys {
		counts[n.Owner(hot, key)]++
	}
	total := len(order)
	for server, count := range counts {
		counts[server] = total // the start of its list; after the next loop, the end
		total += count
	}
	order = grown(order, total)[:total]
	for i, key := range keys {
		server := n.Owner(hot, key)
		order[counts[server]] = uint32(i)
		counts[server]++
	}
	return order, ends
}
