// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// The files of a client: those of its arrays, and, until the trace is complete, a note.
const (
	keysSuffix      = ".keys.npy"      // uint64, (rows,)
	gradientsSuffix = ".gradients.npy" // float32, (rows, dim)
	pushesSuffix    = ".pushes.npy"    // uint64, (pushes, 2): rows of each push, and its step
	noteSuffix      = ".note.json"
)

var suffixes = [3]string{keysSuffix, gradientsSuffix, pushesSuffix}

// note is what a host knows of a client that has ended.
type note struct {
	Part
	Processes []int  `json:"processes"` // the client's and its ancestors
	Order     int    `json:"order"`     // of clients of all hosts, by when they came
	Failed    string `json:"failed,omitempty"`
}

// Recorder records what the clients of a host push.
type Recorder struct {
	dir       string
	host, dim int

	mu      sync.Mutex
	clients int
	open    map[*Recording]bool
	err     error
}

// NewRecorder records into a folder of [Begin]. Each host has a number.
func NewRecorder(dir string, host, dim int) *Recorder {
	return &Recorder{dir: dir, host: host, dim: dim, open: map[*Recording]bool{}}
}

// Client returns where the pushes of a client go, a process with a name for itself.
func (r *Recorder) Client(process int, name string) *Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients++
	c := &Recording{recorder: r}
	c.note.Name, c.note.Client = fmt.Sprintf("host-%d-client-%d", r.host, r.clients), name
	c.note.Processes, c.note.Order = ancestors(process), int(time.Now().UnixNano())
	r.open[c] = true
	return c
}

// Close ends the recordings that have not ended, and returns what failed first in any.
func (r *Recorder) Close() error {
	r.mu.Lock()
	var open []*Recording
	for c := range r.open {
		open = append(open, c)
	}
	r.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Recording is what one client pushes. Its methods are called by one goroutine at a time. A failure
// ends it, but not the training: it shows when the recorder is closed.
type Recording struct {
	recorder *Recorder
	note     note
	arrays   []*arrayWriter // of suffixes; nil before the first push
	closed   bool
}

// Push records a push: rows of keys and gradients.
func (c *Recording) Push(keys []uint64, grads []float32) {
	if c.note.Failed != "" || c.closed {
		return
	}
	if c.arrays == nil && !c.create() {
		return
	}
	n, order := &c.note, binary.LittleEndian
	k, g, p := c.arrays[0], c.arrays[1], c.arrays[2]
	for _, key := range keys {
		k.scratch = order.AppendUint64(k.scratch, key)
	}
	for _, grad := range grads {
		g.scratch = order.AppendUint32(g.scratch, math.Float32bits(grad))
	}
	p.scratch = order.AppendUint64(order.AppendUint64(p.scratch, uint64(len(keys))), uint64(n.Steps))
	c.check(errors.Join(k.write(), g.write(), p.write()))
	n.Pushes++
	n.Rows += len(keys)
}

// EndStep records that the client has ended a step: later pushes are of the next one.
func (c *Recording) EndStep() { c.note.Steps++ }

func (c *Recording) create() bool {
	for i, columns := range []int{0, c.recorder.dim, 2} {
		kind := typeUint64
		if suffixes[i] == gradientsSuffix {
			kind = typeFloat32
		}
		a, err := createArray(filepath.Join(c.recorder.dir, c.note.Name+suffixes[i]), kind, columns)
		if a != nil {
			c.arrays = append(c.arrays, a)
		}
		c.check(err)
	}
	return c.note.Failed == ""
}

// check remembers the first failure.
func (c *Recording) check(err error) {
	if err == nil || c.note.Failed != "" {
		return
	}
	c.note.Failed = err.Error()
	c.recorder.mu.Lock()
	defer c.recorder.mu.Unlock()
	if c.recorder.err == nil {
		c.recorder.err = fmt.Errorf("trace: %w", err)
	}
}

// Close ends the recording. Of a client that has pushed nothing there is no file.
func (c *Recording) Close() {
	if c.closed {
		return
	}
	c.closed = true
	n := &c.note
	for i, a := range c.arrays {
		rows := n.Rows
		if suffixes[i] == pushesSuffix {
			rows = n.Pushes
		}
		c.check(errors.Join(a.finish(rows), a.file.Close()))
		n.Checksums[i] = a.sum.Sum32()
	}
	if c.arrays != nil || n.Failed != "" {
		text, err := json.Marshal(n)
		if err == nil {
			err = os.WriteFile(filepath.Join(c.recorder.dir, n.Name+noteSuffix), text, 0o644)
		}
		c.check(err)
	}
	c.recorder.mu.Lock()
	defer c.recorder.mu.Unlock()
	delete(c.recorder.open, c)
}

// ancestors returns the number of a process, and those of its parent, grandparent and so on.
func ancestors(process int) (all []int) {
	for process > 1 && len(all) < 64 {
		all = append(all, process)
		process = parentOf(process)
	}
	return all
}

// parentOf returns the number of a process's parent, or 0.
func parentOf(process int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process))
	if err != nil {
		return 0
	}
	return parentIn(string(text))
}
