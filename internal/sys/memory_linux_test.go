package sys

import (
	"errors"
	"os"
	"testing"
	"time"

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

func TestCPUTimeGrows(t *testing.T) {
	before, err := OwnUsage()
	if err != nil {
		t.Fatal(err)
	}
	task, err := TaskTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); ; {
		now, err := OwnUsage()
		if err != nil {
			t.Fatal(err)
		}
		used := now.Since(before)
		if used.User+used.Kernel >= uint64(20*time.Millisecond) {
			break
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("a minute of work took %+v", used)
		}
	}
	if now, err := TaskTime(os.Getpid()); err != nil || now < task {
		t.Errorf("the main thread used %d ns after %d, %v", now, task, err)
	}
	if _, err := SoftirqTime(); err != nil {
		t.Error(err)
	}
	if now, err := ProcessUsage(os.Getpid()); err != nil || now.User+now.Kernel == 0 {
		t.Errorf("the process used %+v, %v", now, err)
	}
	if _, err := TaskTime(1 << 30); err == nil {
		t.Error("a task that is not there has a CPU time")
	}
}
