//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// freeHugePages returns how many 2-MB pages are reserved and unused, and skips
// the test if they are fewer than it wants: it is not a test's to reserve them.
func freeHugePages(t *testing.T, want int) int {
	t.Helper()
	const path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Skip(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if n < want {
		t.Skipf("%d huge pages are free (%s), the test needs %d", n, path, want)
	}
	return n
}

// Pages are of 2 MB, whatever the machine's default size is.
func TestHugePagesAreOfTwoMegabytes(t *testing.T) {
	before := freeHugePages(t, 4)
	u, err := NewUMEM(UMEMConfig{Frames: 4000, HugePages: HugePagesRequire})
	if err != nil {
		t.Fatal(err)
	}
	if used := before - freeHugePages(t, 0); used != 4 || u.Pages() != PagesHuge {
		t.Errorf("8,192,000 bytes lie on %d huge pages (%v), want 4", used, u.Pages())
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	if after := freeHugePages(t, 0); after != before {
		t.Errorf("%d huge pages are free after Close, want %d", after, before)
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

// A cgroup's limit, as a container has one, is not seen by mmap: a program that touches
// the pages is killed.
func TestHugePagesOverTheLimit(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a cgroup")
	}
	freeHugePages(t, 4)
	root := t.TempDir()
	if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
		t.Skip("cgroup2: ", err)
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
