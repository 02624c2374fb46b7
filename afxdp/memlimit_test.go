// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// cappedVariable makes the test binary run as the process of TestMemoryLimit, which enters
// the cgroup whose file it names.
const cappedVariable = "AFXDP_TEST_CAPPED"

const memoryCap = 128 << 20

// capped wants more memory than its cgroup may have.
func capped(procs string) error {
	if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
		return err
	}
	for _, pages := range []HugePages{HugePagesTry, HugePagesOff} {
		_, err := NewUMEM(UMEMConfig{Frames: memoryCap/2048 + 1, HugePages: pages})
		if !errors.Is(err, ErrMemlock) || !strings.Contains(err.Error(), filepath.Dir(procs)) {
			return fmt.Errorf("UMEM beyond the limit: %w, want an ErrMemlock that names the file", err)
		}
	}
	u, err := NewUMEM(UMEMConfig{})
	if err != nil {
		return err
	}
	return u.Close()
}

// A program whose cgroup, such as a container's, allows less memory gets an error instead of being
// killed.
func TestMemoryLimit(t *testing.T) {
	var group, file string
	for _, v := range []struct{ dir, file string }{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		dir := filepath.Join(v.dir, fmt.Sprint("afxdp-test-", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		if err := os.WriteFile(filepath.Join(dir, v.file), fmt.Append(nil, memoryCap), 0); err == nil {
			group, file = dir, v.file
			break
		}
	}
	if group == "" {
		t.Skip("needs root, and a cgroup with a memory controller, to make one with a limit")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), cappedVariable+"="+filepath.Join(group, "cgroup.procs"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s of %d bytes: %v\n%.400s", file, memoryCap, err, out)
	}
}

func TestMemoryLimitIsTheSmallest(t *testing.T) {
	root := t.TempDir()
	write := func(file, text string) string {
		t.Helper()
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("a/memory.max", "300\n")
	write("a/b/memory.max", "max\n")
	write("c/memory.max", "100\n")
	write("memory/memory.limit_in_bytes", "9223372036854771712\n")
	write("memory/d/memory.limit_in_bytes", "200\n")
	write("cpu/d/memory.limit_in_bytes", "50\n")
	for membership, want := range map[string]struct {
		limit int64
		file  string
	}{
		"":                            {math.MaxInt64, ""},
		"0::/\n":                      {math.MaxInt64, ""},
		"0::/a/b\n":                   {300, "a/memory.max"},
		"0::/elsewhere\n":             {math.MaxInt64, ""},
		"0::/../c\n":                  {100, "c/memory.max"},
		"4:cpu:/d\n0::/a\n":           {300, "a/memory.max"},
		"9:hugetlb,memory:/d/e\n":     {200, "memory/d/memory.limit_in_bytes"},
		"9:memory:/\n":                {9223372036854771712, "memory/memory.limit_in_bytes"},
		"9:memory:/d\n4:cpu:/d\n0::/": {200, "memory/d/memory.limit_in_bytes"},
	} {
		limit, file := memoryLimit(write("membership", membership), root)
		if file != "" {
			file, _ = filepath.Rel(root, file)
		}
		if limit != want.limit || file != want.file {
			t.Errorf("%q: %d of %q, want %d of %q", membership, limit, file, want.limit, want.file)
		}
	}
	if limit, _ := memoryLimit(filepath.Join(root, "nosuch"), root); limit != math.MaxInt64 {
		t.Errorf("without a membership: %d", limit)
	}
}
