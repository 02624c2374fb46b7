// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSharedMemoryIsShared(t *testing.T) {
	s, err := NewShared("test", 3*4096)
	if err != nil {
		t.Fatal(err)
	}
	other, err := MapShared(int(s.File.Fd()), 4096, 4096, unix.PROT_READ)
	if err != nil {
		t.Fatal(err)
	}
	s.Mem[4096+7] = 42
	if len(s.Mem) != 3*4096 || other[7] != 42 {
		t.Errorf("%d bytes, of which the other mapping has %d", len(s.Mem), other[7])
	}
	if err := errors.Join(unix.Munmap(other), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := MapShared(1<<20, 0, 4096, unix.PROT_READ); !errors.Is(err, unix.EBADF) {
		t.Errorf("a descriptor that is not open: %v", err)
	}
}
