// SPDX-License-Identifier: Apache-2.0

// Package export shows over HTTP what a process of a cluster has measured and counted
// (docs/telemetry.md): metrics for Prometheus at /metrics, the records of drawn frames at /records.
//
// A reader never makes an endpoint wait, nor an aggregator: histograms are read from their atomic
// counters, and everything else is what a [Watch] has collected within the last second, with or
// without readers. Its age is a metric, which shows a process that hangs.
//
// The number of series has a bound, which does not depend on the number of workers, jobs and
// clients.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package export
