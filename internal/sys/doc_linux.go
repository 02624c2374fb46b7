// SPDX-License-Identifier: Apache-2.0

// Package sys holds what several packages need of Linux: network namespaces, pinned
// threads, a waker for poll loops, capabilities, the sysfs attributes of interfaces,
// memory that processes share, and CPU time.
package sys
