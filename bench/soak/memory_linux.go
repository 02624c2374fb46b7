package soak

import (
	"fmt"
	"os"
	"runtime"
)

// takeMemory collects garbage and says what is left.
func takeMemory() (m Memory, err error) {
	// The second collection frees what finalizers and pools kept over the first.
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return m, fmt.Errorf("soak: count descriptors: %w", err)
	}
	return Memory{
		Heap: stats.HeapAlloc, Objects: stats.HeapObjects, Mallocs: stats.Mallocs,
		Descriptors: len(files) - 1, // without that of the directory
		Goroutines:  runtime.NumGoroutine(),
	}, nil
}
