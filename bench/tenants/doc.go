// Package tenants measures whether tenants of one aggregator disturb each other.
// It is what 'libra bench tenants' runs.
//
// Three jobs share a switch that runs the XDP program and the control daemon on a
// network of namespaces: one in combine mode with exact arithmetic, one in
// fetchadd mode with fixed arithmetic, one in sync mode with lut arithmetic. The
// first two push known gradients, and are harvested by time. The third floods: its
// one host sends, as fast as an AF_XDP socket can, frames that the aggregator has
// to refuse or drop (wrong checksum, slots out of range, wrong epoch, a sender
// that was not admitted).
//
// Every run checks that the sums that the first two got are those of what they
// pushed, integer for integer. What is measured is the time between their
// harvests, with the flood and without. All processes share the machine's cores,
// as the flood's frames and the daemon do on a software switch.
package tenants
