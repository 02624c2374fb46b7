// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrNoCPUGroups means that the system cannot limit processes to a share of CPU time.
var ErrNoCPUGroups = errors.New("no control groups with the controller cpu: mount them (mount -t cgroup2 none /sys/fs/cgroup) on a kernel with CONFIG_CFS_BANDWIDTH")

// GroupPeriod is the period in which the tasks of a [CPUGroup] get their share once. Much shorter
// periods do not work: the kernel checks at ticks of up to 10 ms.
const GroupPeriod = 20 * time.Millisecond

// groupPrefix is the prefix of the names of control groups, before the process id of their owner.
const groupPrefix = "libra-bench-"

// CPUGroup limits tasks to a share of CPU time, by a control group.
type CPUGroup struct{ root, dir string }

// NewCPUGroup creates a control group whose tasks together get a number of CPUs, such as 0.2, even
// on a busy machine: up to that limit they have a hundred times the weight of others. name must be
// unique in the calling process. The caller closes the group. It requires root. It removes groups
// of killed processes.
func NewCPUGroup(name string, cpus float64) (*CPUGroup, error) {
	g, err := newCPUGroup("/proc/self/mountinfo", name, cpus)
	if err != nil {
		return nil, fmt.Errorf("hold %s to %.2g CPUs: %w", name, cpus, err)
	}
	return g, nil
}

func newCPUGroup(mounts, name string, cpus float64) (*CPUGroup, error) {
	root, unified, err := cpuController(mounts)
	if err != nil {
		return nil, err
	}
	removeStale(root)
	period, quota := GroupPeriod.Microseconds(), int64(cpus*float64(GroupPeriod.Microseconds()))
	// version 1
	limits := [][2]string{{"cpu.shares", "102400"}, {"cpu.cfs_period_us", fmt.Sprint(period)},
		{"cpu.cfs_quota_us", fmt.Sprint(quota)}}
	if unified {
		limits = [][2]string{{"cpu.weight", "10000"}, {"cpu.max", fmt.Sprintf("%d %d", quota, period)}}
		if err := writeFile(root, "cgroup.subtree_control", "+cpu"); err != nil {
			return nil, err
		}
	}
	g := &CPUGroup{root: root, dir: filepath.Join(root, fmt.Sprintf("%s%d-%s", groupPrefix, os.Getpid(), name))}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	for _, l := range limits {
		if err := writeFile(g.dir, l[0], l[1]); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	return g, nil
}

// cpuController returns the path of control groups with the controller cpu, and whether they are of
// version 2.
func cpuController(mounts string) (root string, unified bool, err error) {
	text, err := os.ReadFile(mounts)
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(text)) {
		mount, super, _ := strings.Cut(line, " - ") // proc_pid_mountinfo(5)
		at, kind := strings.Fields(mount), strings.Fields(super)
		if len(at) < 5 || len(kind) < 3 {
			continue
		}
		switch kind[0] {
		case "cgroup":
			if slices.Contains(strings.Split(kind[2], ","), "cpu") {
				return at[4], false, nil
			}
		case "cgroup2":
			controllers, err := os.ReadFile(filepath.Join(at[4], "cgroup.controllers"))
			if err == nil && slices.Contains(strings.Fields(string(controllers)), "cpu") {
				return at[4], true, nil
			}
		}
	}
	return "", false, ErrNoCPUGroups
}

// removeStale removes the groups of killed processes. A group with tasks stays.
func removeStale(root string) {
	groups, _ := filepath.Glob(filepath.Join(root, groupPrefix+"*")) // fails only for bad patterns
	for _, dir := range groups {
		owner, _, _ := strings.Cut(filepath.Base(dir)[len(groupPrefix):], "-")
		if _, err := os.Stat("/proc/" + owner); errors.Is(err, os.ErrNotExist) {
			_ = os.Remove(dir)
		}
	}
}

// Add moves a process or a kernel thread into the group.
func (g *CPUGroup) Add(pid int) error { return writeFile(g.dir, "cgroup.procs", strconv.Itoa(pid)) }

// Close moves the group's tasks to the root group and removes the group.
func (g *CPUGroup) Close() error {
	members, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	for pid := range strings.FieldsSeq(string(members)) {
		_ = writeFile(g.root, "cgroup.procs", pid) // a task that has ended is in no group; if one stays, Remove fails
	}
	return os.Remove(g.dir)
}

func writeFile(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
