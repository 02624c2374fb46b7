// SPDX-License-Identifier: Apache-2.0

// Package report shows a command's progress and results to its user.
//
// A [Progress] is one status line at the bottom of a terminal, or, if the output is a file or a
// pipe, a line for each tenth of the work. [Table] writes results in columns.
package report
