// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Shared is shared memory. It is freed with its last user.
type Shared struct {
	File *os.File // for other processes
	Mem  []byte
}

// NewShared creates size bytes of memory with a name.
func NewShared(name string, size int) (*Shared, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", os.NewSyscallError("memfd_create", err))
	}
	s := &Shared{File: os.NewFile(uintptr(fd), name)}
	if err := s.File.Truncate(int64(size)); err != nil {
		return nil, errors.Join(fmt.Errorf("size shared memory: %w", err), s.File.Close())
	}
	if s.Mem, err = MapShared(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, errors.Join(err, s.File.Close())
	}
	return s, nil
}

// MapShared maps size bytes of a descriptor's memory from offset on, with the PROT flags of
// mmap(2). All pages are populated when it returns, so that no page fault is measured.
func MapShared(fd int, offset int64, size, prot int) ([]byte, error) {
	mem, err := unix.Mmap(fd, offset, size, prot, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", os.NewSyscallError("mmap", err))
	}
	return mem, nil
}

// Close unmaps this process's part of the memory.
func (s *Shared) Close() error { return errors.Join(unix.Munmap(s.Mem), s.File.Close()) }
