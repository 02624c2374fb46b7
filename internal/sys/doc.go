// Package sys holds what several packages need of the operating system: network
// namespaces, pinned threads, a waker for poll loops, capabilities, the sysfs
// attributes of interfaces, and files that are replaced atomically. All but the
// last is for Linux.
package sys
