// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"io/fs"

	"github.com/libra-ina/libra/simulation/world"
)

// chosenMode is the mode that a checkpoint must keep.
const chosenMode = 0o640

// checkpoints is the [world.DiskWatcher] of the server's machine.
type checkpoints struct{ c *clusterLife }

// Renamed checks a checkpoint that gets its name, and the mode that it has in place of another. The
// operator gives the first one a mode.
func (d checkpoints) Renamed(p *world.Process, to string, data []byte, before, mode fs.FileMode) fs.FileMode {
	switch {
	case before == 0:
		mode = chosenMode
	case before != mode:
		d.c.Fail("%s replaces %s, of mode %v, by a file of mode %v", p.Name(), to, before, mode)
	}
	d.c.accounts.checkWritten(data)
	return mode
}

// Opened checks what a server finds on its disk.
func (d checkpoints) Opened(path string, whole bool) {
	if !whole {
		d.c.Fail("%s is not one that was written whole, or is older than the newest that was durable", path)
		return
	}
	d.c.result.Resumes++
}
