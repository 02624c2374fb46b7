// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// checkMemoryLimit refuses ordinary memory beyond the limit of a cgroup of this process, such as a
// container's: the kernel kills a process that touches more, without an error.
func checkMemoryLimit(size int) error {
	limit, file := memoryLimit("/proc/self/cgroup", "/sys/fs/cgroup")
	if int64(size) <= limit {
		return nil
	}
	return fmt.Errorf("%w: %d bytes, of which %s allows %d; raise that, or use fewer frames", ErrMemlock, size, file,
		limit)
}

// memoryLimit returns the smallest limit of the cgroups of a process, and its file: of version 2,
// or of version 1 with a hierarchy for memory. A container that does not see its place in the
// hierarchy finds its own limit at the root.
func memoryLimit(membership, root string) (limit int64, file string) {
	limit = math.MaxInt64
	text, _ := os.ReadFile(membership) // without it no limit is known
	for line := range strings.Lines(string(text)) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(line, ":")
		top, name := root, "memory.max"
		if controllers != "" {
			top, name = filepath.Join(root, "memory"), "memory.limit_in_bytes"
			if !slices.Contains(strings.Split(controllers, ","), "memory") {
				continue
			}
		}
		for path = filepath.Join("/", path); ; path = filepath.Dir(path) {
			f := filepath.Join(top, path, name)
			text, _ := os.ReadFile(f)
			// "max" is not a number.
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n < limit {
				limit, file = n, f
			}
			if path == "/" {
				break
			}
		}
	}
	return limit, file
}
