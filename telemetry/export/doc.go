// SPDX-License-Identifier: Apache-2.0

// Package export shows over HTTP what a process of a cluster has measured and counted
// (docs/telemetry.md): metrics for Prometheus at /metrics, the records of drawn frames at /records.
//
// A reader never makes an endpoint wait, nor an aggregator: histograms are read from their atomic
// counters, and everything else is as a [Watch] has got it within the last second, whether somebody
// reads or not. The age of that is a metric, so that a process that has stopped can be seen.
//
// The number of series has a bound, which does not depend on the number of workers, jobs and
// clients.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package export
