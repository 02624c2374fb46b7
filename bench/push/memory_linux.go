package push

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Descriptors under which peers find the shared memory.
const (
	workloadFD = 3
	sumsFD     = 4 // servers only
)

// shared is memory of several processes, which goes with the last of them.
type shared struct {
	file *os.File
	mem  []byte
}

func newShared(name string, size int) (*shared, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("push: shared memory: %w", os.NewSyscallError("memfd_create", err))
	}
	s := &shared{file: os.NewFile(uintptr(fd), name)}
	if err := s.file.Truncate(int64(size)); err != nil {
		return nil, errors.Join(fmt.Errorf("push: size shared memory: %w", err), s.file.Close())
	}
	if s.mem, err = mapShared(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

// mapShared maps a part of a file. The pages are all there when it returns, so
// that no page fault is measured.
func mapShared(fd int, offset int64, size, prot int) ([]byte, error) {
	mem, err := unix.Mmap(fd, offset, size, prot, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("push: map shared memory: %w", os.NewSyscallError("mmap", err))
	}
	return mem, nil
}

func (s *shared) close() error { return errors.Join(unix.Munmap(s.mem), s.file.Close()) }

// sumsSize is the size of the memory that a server stores its rows in, after
// their number, which takes the place of the first row.
const sumsSize = int(unsafe.Sizeof(row{})) * (Keys + 1)

// putRows stores what a server holds.
func putRows(mem []byte, rows []row) {
	all := view[row](mem)
	all[0] = row{key: uint64(len(rows))}
	copy(all[1:], rows)
}

// heldRows returns what a server stored.
func heldRows(mem []byte) []row {
	all := view[row](mem)
	return all[1:][:min(all[0].key, Keys)]
}
