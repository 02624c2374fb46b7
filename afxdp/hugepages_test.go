// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// provideHugePages makes the kernel provide at least four huge pages of 2 MB until the test ends.
// It raises the limit of surplus pages: another process could take reserved ones before the test,
// and they would stay reserved if the test were killed.
func provideHugePages(t *testing.T) {
	t.Helper()
	const limit = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages"
	f, err := os.OpenFile(limit, os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs root and a kernel with huge pages of 2 MB: ", err)
	}
	t.Cleanup(func() { _ = f.Close() })
	// Another process's test must not treat this one's limit as the machine's.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	before, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	set := func(n int) error {
		_, err := f.WriteAt([]byte(strconv.Itoa(n)), 0)
		return err
	}
	if err := set(before + 64); err != nil {
		t.Skip("needs a /sys that can be written, to provide huge pages: ", err)
	}
	t.Cleanup(func() {
		if err := set(before); err != nil {
			t.Error(err)
		}
	})
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB | unix.MAP_HUGE_2MB
	probe, err := unix.Mmap(-1, 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		t.Skip("the kernel finds no four huge pages of 2 MB, free memory is short or in pieces: ", err)
	}
	if err := unix.Munmap(probe); err != nil {
		t.Fatal(err)
	}
}

// ownHugePages returns how many kB of this process are on huge pages.
func ownHugePages(t *testing.T) (kB int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(b), "\nHugetlbPages:")
	if _, err := fmt.Sscanf(line, "%d kB", &kB); !found || err != nil {
		t.Fatalf("/proc/self/status without HugetlbPages: %v", err)
	}
	return kB
}

// Pages are of 2 MB, whatever the machine's default size is.
func TestHugePagesAreOfTwoMegabytes(t *testing.T) {
	provideHugePages(t)
	before := ownHugePages(t)
	u, err := NewUMEM(UMEMConfig{Frames: 4000, HugePages: HugePagesRequire})
	if err != nil {
		t.Fatal(err)
	}
	if used := ownHugePages(t) - before; used != 4*2048 || u.Pages() != PagesHuge {
		t.Errorf("8,192,000 bytes lie on %d kB of huge pages (%v), want 8192", used, u.Pages())
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	if after := ownHugePages(t); after != before {
		t.Errorf("%d kB of huge pages are in use after Close, want %d", after, before)
	}
}

// limitedVariable makes the test binary run as the process of
// TestHugePagesOverTheLimit.
const limitedVariable = "AFXDP_TEST_LIMITED"

// limited wants huge pages that its cgroup forbids.
func limited() error {
	u, err := NewUMEM(UMEMConfig{})
	if err != nil {
		return err
	}
	if u.Pages() == PagesHuge {
		return errors.New("huge pages in spite of the limit")
	}
	clear(u.mem)
	if _, err := NewUMEM(UMEMConfig{HugePages: HugePagesRequire}); !errors.Is(err, ErrNoHugePages) {
		return fmt.Errorf("HugePagesRequire: %w, want ErrNoHugePages", err)
	}
	return u.Close()
}

// mmap does not see a cgroup's limit, such as a container's: a program that touches the pages is
// killed.
func TestHugePagesOverTheLimit(t *testing.T) {
	provideHugePages(t)
	root := t.TempDir()
	if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
		t.Skip("needs root, and a kernel with cgroup v2, to make a cgroup: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	has := func(file string) bool {
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(b), "hugetlb")
	}
	if !has("cgroup.controllers") {
		t.Skip("the kernel, or cgroup v1, keeps the hugetlb controller")
	}
	write := func(file, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, file), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	if !has("cgroup.subtree_control") {
		write("cgroup.subtree_control", "+hugetlb")
		t.Cleanup(func() { write("cgroup.subtree_control", "-hugetlb") })
	}
	name := fmt.Sprint("afxdp-test-", os.Getpid())
	group := filepath.Join(root, name)
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	write(filepath.Join(name, "hugetlb.2MB.max"), "0")
	dir, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), limitedVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%.400s", err, out)
	}
}
