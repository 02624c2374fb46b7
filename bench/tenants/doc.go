// Package tenants measures whether tenants of one aggregator disturb each other.
// It is what 'libra bench tenants' runs.
//
// Tenants share a switch that runs the XDP program and the control daemon on a
// network of namespaces. One job in combine mode with exact arithmetic and one in
// fetchadd mode with fixed arithmetic push known gradients, and are harvested by
// time. Beside them, in the second run, a third job floods: its host sends, as fast
// as an AF_XDP socket can and in the name of as many senders as a job gets, frames
// that cost the aggregator most (the last of 220 sums overflows, the last rank is
// out of range, values of half the range with the sums asked for), and some with a
// wrong checksum or of a sender that was not admitted. From a fourth host, senders
// join and leave, and jobs are created and removed, in four loops each.
//
// Every run checks that the sums that the first two got are those of what they
// pushed, integer for integer. What is measured is the time between their harvests.
// All processes share the machine's cores, as the flood's frames and the daemon do
// on a software switch.
package tenants
