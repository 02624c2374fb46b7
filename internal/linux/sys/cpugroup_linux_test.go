// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A process in a group is stopped when its share is used up, and continues when the group is
// removed.
func TestCPUGroupHolds(t *testing.T) {
	g, err := NewCPUGroup("test", 0.1)
	if errors.Is(err, ErrNoCPUGroups) || errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	loop := exec.Command("sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = loop.Process.Kill(); _ = loop.Wait() }()
	if err := g.Add(loop.Process.Pid); err != nil {
		t.Fatal(err)
	}
	throttled := func() bool {
		text, err := os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
		if err != nil {
			t.Fatal(err)
		}
		return !strings.Contains(string(text), "nr_throttled 0\n")
	}
	for start := time.Now(); !throttled(); time.Sleep(time.Millisecond) {
		if time.Since(start) > eventLimit {
			t.Fatal("never stopped")
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(g.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", g.dir, err)
	}
}

// The controller is found in a mount of either version.
func TestCPUController(t *testing.T) {
	dir := t.TempDir()
	with, without := filepath.Join(dir, "with"), filepath.Join(dir, "without")
	for at, controllers := range map[string]string{with: "cpuset cpu io\n", without: "cpuset io\n"} {
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "cgroup.controllers"), []byte(controllers), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const line = "31 24 0:26 / %s rw,nosuid - %s\n"
	for _, test := range []struct {
		mounts, root string
		unified      bool
	}{
		{"", "", false},
		{"24 1 0:20 / / rw\n", "", false},
		{fmt.Sprintf(line, "/v1/cpuacct", "cgroup none rw,cpuacct"), "", false},
		{fmt.Sprintf(line, without, "cgroup2 none rw"), "", false},
		{fmt.Sprintf(line, without, "cgroup2 none rw") + fmt.Sprintf(line, "/v1/cpu", "cgroup none rw,cpu,cpuacct"), "/v1/cpu", false},
		{fmt.Sprintf(line, with, "cgroup2 none rw"), with, true},
	} {
		mounts := filepath.Join(dir, "mounts")
		if err := os.WriteFile(mounts, []byte(test.mounts), 0o644); err != nil {
			t.Fatal(err)
		}
		root, unified, err := cpuController(mounts)
		if root != test.root || unified != test.unified || (err == nil) != (root != "") || err != nil && !errors.Is(err, ErrNoCPUGroups) {
			t.Errorf("%q: %q, %v, %v", test.mounts, root, unified, err)
		}
	}
}

// Groups of version 2 get their share in cpu.max; groups of ended processes are removed.
func TestCPUGroupOfVersion2(t *testing.T) {
	root := t.TempDir()
	mounts, stale := filepath.Join(root, "mounts"), filepath.Join(root, groupPrefix+"999999999-server")
	mine := filepath.Join(root, fmt.Sprintf("%s%d-server", groupPrefix, os.Getpid()))
	for name, text := range map[string]string{"cgroup.controllers": "cpu", "cgroup.subtree_control": "", "mounts": "31 24 0:26 / " + root + " rw - cgroup2 none rw\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	// A folder of an ordinary file system has no control files: the first write fails.
	if _, err := newCPUGroup(mounts, "server", 0.2); err == nil || !strings.Contains(err.Error(), filepath.Join(mine, "cpu.weight")) {
		t.Errorf("%v does not name cpu.weight", err)
	}
	if enabled, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); string(enabled) != "+cpu" {
		t.Errorf("controllers %q are enabled: %v", enabled, err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", stale, err)
	}
}
