// Package control is Libra's control plane: admission of jobs and senders,
// harvest of the aggregator's sums, barriers between workers.
//
// [Aggregator] is the service of Libra_s, the daemon beside a data plane;
// [ParameterServer] is the service of a parameter server, and [Harvester] the
// client with which it collects the sums. All of it is gRPC over the kernel's
// TCP, which the XDP programs let pass. No gradient takes this path except as
// a harvested sum.
package control
