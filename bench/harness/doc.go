// SPDX-License-Identifier: Apache-2.0

// Package harness sets up what the benchmarks measure: jobs on the hosts of a test bed
// ([HostConfig]), the switch between them ([OpenSwitch]), and small XDP programs as baselines
// ([LoadXDP]). How experiments take turns and what they report is in package
// internal/report/experiment.
package harness
