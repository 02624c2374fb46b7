// Package placement holds the paper's packaging of hot gradients for a switch
// whose m registers are accessed once a pass (libra.txt §3.4): [Heat] and
// [Random] place parameters in registers, [Algorithm1] is
// PARAMETER_ORCHESTRATING as printed and [Orchestrator] the same, fast, and
// [Recirculations] counts what a packet costs.
//
// It serves comparisons. What Libra sends is packed by package packer, whose
// lane-aligned frames never recirculate. Ranks are scalar ranks, 0 the hottest;
// capacities count gradients. None of the types may be used by two goroutines at
// once, except Heat and Random, which are immutable.
package placement
