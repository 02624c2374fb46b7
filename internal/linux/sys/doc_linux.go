// SPDX-License-Identifier: Apache-2.0

// Package sys wraps Linux functions that several packages use: network namespaces, pinned threads,
// a waker for poll loops, capabilities, sysfs attributes of interfaces, shared memory, and CPU
// time.
package sys
