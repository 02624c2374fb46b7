// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/file"
)

var errFull = errors.New("no space left")

// fullDisk has no room for one file.
type fullDisk struct {
	osDisk
	file string
}

func (d *fullDisk) Create(path string, mode fs.FileMode) (file.Writer, error) {
	if path == d.file {
		return nil, errFull
	}
	return d.osDisk.Create(path, mode)
}

// A server whose disk takes no checkpoint does not begin. It names the field, and the job and the
// checkpoint are free. Several servers of a synchronous job need room for two.
func TestDiskTakesNoCheckpoint(t *testing.T) {
	c := newCluster(t, 1)
	several := newCluster(t, 1)
	shard(t, several, 2)
	startSwitch(t, c)
	startSwitch(t, several)
	for file, on := range map[string]struct {
		c     *cluster.Config
		field string
	}{
		c.Server.Checkpoint + temporary:                            {c, "server"},
		several.Servers[0].Checkpoint + temporary:                  {several, "servers[0]"},
		several.Servers[0].Checkpoint + previousSuffix + temporary: {several, "servers[0]"},
	} {
		_, err := RunServer(soon(t), Env{Config: on.c, Machine: Machine{Disk: &fullDisk{file: file}}, Log: testLog(t)})
		if !errors.Is(err, errFull) || !strings.Contains(err.Error(), on.field+".checkpoint: a checkpoint cannot be written: ") {
			t.Errorf("%s: %v", file, err)
		}
	}
	mustTrain(t, c)
	if err := errors.Join(trainSharded(t.Context(), t, several, nil, nil).errs...); err != nil {
		t.Error(err)
	}
}

// A server that cannot write the checkpoint of a step, or keep the one before, lets the workers go
// on, and the log has it. The newest checkpoint is not given up before there is room for both.
func TestNoRoomForAStep(t *testing.T) {
	s := newServer(t, true)
	s.progress.agreed = func() map[string]string { return map[string]string{} }
	c := *s.env.Config
	c.Servers, c.Server.CheckpointSteps = make([]cluster.Server, 2), 1
	var all lines
	disk := &fullDisk{}
	s.env.Config, s.env.Log, s.env.Machine.Disk = &c, all.logger(), disk
	path := c.Server.Checkpoint
	for step, w := range []struct {
		full                  string
		newest, before, fails int
	}{
		{newest: 1}, {newest: 2, before: 1},
		{full: path + previousSuffix + temporary, newest: 2, before: 1, fails: 1},
		{full: path + temporary, newest: 2, before: 2, fails: 2},
		{newest: 5, before: 2, fails: 2}, {newest: 6, before: 5, fails: 2},
	} {
		disk.file = w.full
		if err := s.commitSync(t.Context(), uint64(step)); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]int{path: w.newest, path + previousSuffix: w.before} {
			if want == 0 {
				if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("after step %d there is %s: %v", step, file, err)
				}
				continue
			}
			if _, p := restored(t, file, s.store.Config()); p.Step != uint64(want) {
				t.Errorf("after step %d, %s has %d steps, want %d", step, file, p.Step, want)
			}
		}
		const line = "no checkpoint was written; training goes on, and cannot be continued if the other servers have gone further"
		if n := strings.Count(all.String(), line); n != w.fails {
			t.Errorf("after step %d, %d failures are logged, want %d", step, n, w.fails)
		}
	}
}

// A checkpoint that its last server wrote while this one began is checked, too.
func TestCheckpointIsReplacedMeanwhile(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	mustTrain(t, c)
	replace := func(ctx context.Context, at netip.AddrPort) (net.Listener, error) { // after it was read for the first time
		if err := os.WriteFile(c.Server.Checkpoint, []byte("no checkpoint"), 0o600); err != nil {
			return nil, fmt.Errorf("in its place: %w", err)
		}
		return new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
	defer cancel()
	_, err := RunServer(ctx, Env{Config: c, Machine: Machine{Listen: replace}, Log: testLog(t)})
	if err == nil || !strings.Contains(err.Error(), "server.checkpoint: ") || !strings.Contains(err.Error(), "replace it by an intact copy, or remove it to start over") {
		t.Errorf("%v", err)
	}
}
