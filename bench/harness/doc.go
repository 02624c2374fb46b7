// SPDX-License-Identifier: Apache-2.0

// Package harness is what all experiments and studies share: turns that
// subjects take round by round ([TakeTurns]), the statistics of their samples
// ([SpreadOf], [Ratios]), verdicts on targets ([Target]), what was not measured
// and why ([Unavailable]), tables and charts ([Report], [Drawn]).
//
// Everything on one machine is slower for a while when its neighbours are busy.
// Hence what is compared takes turns within each round, and a ratio is taken
// within a round before the median over the rounds is.
package harness
