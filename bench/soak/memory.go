// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// Memory is what a process holds after a garbage collection.
type Memory struct {
	Heap        uint64 `json:"heap_bytes"`
	Objects     uint64 `json:"heap_objects"`
	Mallocs     uint64 `json:"mallocs"` // since the process began
	Descriptors int    `json:"descriptors"`
	Goroutines  int    `json:"goroutines"`
}

// Growth compares what a process held after its warm-up with what it held at
// last.
type Growth struct {
	Process string `json:"process"`
	Samples int    `json:"samples"`
	First   Memory `json:"first"`
	Last    Memory `json:"last"`
}

// takeMemory collects garbage and returns what this process still holds.
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
		Goroutines:  goroutines(),
	}, nil
}

// leaving is the time for goroutines to leave that have announced their end.
const leaving = 20 * time.Millisecond

// goroutines returns how many goroutines stay.
func goroutines() int {
	fewest := runtime.NumGoroutine()
	for began := time.Now(); time.Since(began) < leaving; time.Sleep(time.Millisecond) {
		fewest = min(fewest, runtime.NumGoroutine())
	}
	return fewest
}

// memoryWatch compares what a process holds after its warm-up with what it holds
// later, one process after the other.
type memoryWatch struct {
	process string
	warmUp  int    // samples of each process that do not count
	pid     int    // the current process
	growth  Growth // of it; its samples are below 0 during the warm-up
	longest Growth // growth of the process with most samples
}

// addSample takes a sample. It returns an error if it is the first one of a new
// process and the one before had grown.
func (w *memoryWatch) addSample(pid int, m Memory) (err error) {
	if pid != w.pid {
		err = w.endProcess()
		w.pid = pid
	}
	w.growth.Samples++
	if w.growth.Samples <= 1 {
		w.growth.First = m
	}
	w.growth.Last = m
	return err
}

// endProcess closes the current process's record and returns an error if it has grown.
func (w *memoryWatch) endProcess() error {
	err := w.growth.checkGrowth()
	if w.growth.Samples > w.longest.Samples {
		w.longest = w.growth
	}
	w.growth = Growth{Process: w.process, Samples: -w.warmUp}
	return err
}

// heapSlack is by how much a heap may grow over a run: the report itself grows
// with each event.
const heapSlack = 1 << 20

// checkGrowth returns an error that names what has grown since the warm-up.
func (g *Growth) checkGrowth() error {
	var what string
	if g.Last.Heap > g.First.Heap+heapSlack {
		what += fmt.Sprintf(", heap from %d to %d bytes", g.First.Heap, g.Last.Heap)
	}
	if g.Last.Descriptors != g.First.Descriptors {
		what += fmt.Sprintf(", descriptors from %d to %d", g.First.Descriptors, g.Last.Descriptors)
	}
	if g.Last.Goroutines != g.First.Goroutines {
		what += fmt.Sprintf(", goroutines from %d to %d", g.First.Goroutines, g.Last.Goroutines)
	}
	if what == "" {
		return nil
	}
	return fmt.Errorf("soak: the memory of the %s changed over %d rounds%s", g.Process, g.Samples, what)
}
