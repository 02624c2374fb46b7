// SPDX-License-Identifier: Apache-2.0

// Package report shows a command's user how far it is and what came out.
//
// A [Progress] is one status line at the bottom of a terminal, or a line for
// each tenth of the way where the output goes to a file or a pipe. [Table]
// writes results in columns.
package report
