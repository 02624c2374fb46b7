// Package sample has mutants with every result.
package sample

import "log/slog"

// Limit is tested at its edge.
func Limit(n, limit int) int {
	if n > limit {
		slog.Info("limited", "n", n, "limit", limit)
		return limit
	}
	return n
}

// Steps does not end if its decrement is reversed.
func Steps(n int) int {
	steps := 0
	for i := n; i > 0; i-- {
		steps++
	}
	return steps
}

// Apply is not tested enough.
func Apply(set map[string]int, ok bool) int {
	if ok {
		store(set, "a", "b")
	}
	return len(set)
}

func store(set map[string]int, key, _ string) { set[key] = 1 }

// Twice returns what its deferred function makes of the result.
func Twice(n int) (twice int) {
	once, twice := n, n
	defer func() { twice *= 2 }()
	return once
}
