// Package hotset studies how well hot parameters are found and packed, on real
// and synthetic training logs: the experiments of libra.txt §5.3 and §5.4 with
// the code that Libra itself uses.
//
//   - Precision: which part of the true hot set a sample of the rows finds.
//   - Packets: how often a switch would have to recirculate a packet, by
//     placement and packing.
//   - Lanes: the share of unfilled lanes, by batch size.
//
// Parameters are single scalars here (dimension 1), as in the paper.
package hotset
