// Package arithmetic studies the numbers that an aggregator adds: what table
// lookup, scaled integers, float32 and exact fixed point make of one addition
// (libra.txt §5.5, Table 2) and of a long sum, and the memory that they take
// (§5.7).
//
// The precision of a sum is 1 - |got - true| / |true|, and not less than 0: a sum
// that is wrong by more than itself is no worse than none. Where the true sum is
// 0 it is 1 if got is 0, too, and 0 otherwise.
package arithmetic
