//go:build linux

package bpf

import "unsafe"

// JobMemory is what the two banks of a job take, in bytes. It does not depend on
// the number of slots: the kernel wants all inner maps of a map alike.
const JobMemory = 2 * uint64(unsafe.Sizeof(bankValue{}))
