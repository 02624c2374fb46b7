// SPDX-License-Identifier: Apache-2.0

// Package verdict says which process of a cluster makes the others wait, and why, from what the
// processes show at telemetry.port (docs/telemetry.md).
//
// A [Judge] is given each process's [Scrape] as it comes, and reports at any time. It knows no
// clock and no network: whoever calls it says what time it is. Times of two machines are not
// compared.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package verdict
