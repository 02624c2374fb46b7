// Package sys holds what several packages need of Linux: network namespaces, pinned
// threads, a waker for poll loops, capabilities, and the sysfs attributes of
// interfaces.
package sys
