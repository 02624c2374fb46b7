// SPDX-License-Identifier: Apache-2.0

// Package baselines holds the programs in C and C++ that Libra is measured
// against, and builds them where a compiler and the headers are.
package baselines
