// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/train"
)

// A server that is started while the one before it still writes its last checkpoint
// waits for that, leaves its unfinished file alone, and continues from the new one.
func TestServerContinuesFromItsPredecessorsLastCheckpoint(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	mustTrain(t, c)
	early, err := os.ReadFile(c.Server.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	c.Model.Epochs = 2
	want := mustTrain(t, c).server.WeightsSHA256
	late, err := os.ReadFile(c.Server.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}

	// The server before: it has the job, and writes its checkpoint.
	unfinished := c.Server.Checkpoint + ".tmp"
	for path, contents := range map[string][]byte{c.Server.Checkpoint: early, unfinished: late} {
		if err := os.WriteFile(path, contents, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+c.Switch.Control.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	job, err := control.CreateJob(t.Context(), pb.NewAggregatorClient(conn), &pb.JobSpec{
		Job: uint32(c.Job.ID), Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT, Slots: 10,
	}, 0, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := job.Hold(t.Context(), func(error) {}); err != nil {
		t.Fatal(err)
	}

	var all lines
	ended := make(chan outcome, 1)
	go func() { ended <- trainWith(t.Context(), c, hooks{}, all.logger()) }()
	for deadline := time.Now().Add(eventLimit); !strings.Contains(all.String(), "waiting until it is free"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the second server does not wait for the first:\n%s", all.String())
		}
	}
	if err := os.Rename(unfinished, c.Server.Checkpoint); err != nil {
		t.Errorf("the first server cannot finish its checkpoint: %v", err)
	}
	if err := job.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := <-ended
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if out.server.WeightsSHA256 != want || out.workers[0].Samples != 0 {
		t.Errorf("%d samples were trained again, weights %s, those of the checkpoint %s", out.workers[0].Samples, out.server.WeightsSHA256, want)
	}
}

// What makes a checkpoint impossible to read or write is an error at the start, which
// names the file, the field and what to do, and leaves the file as it is.
func TestUnusableCheckpointFailsAtTheStart(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	mustTrain(t, c)
	good, err := os.ReadFile(c.Server.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	damaged := append([]byte{}, good...)
	damaged[len(damaged)/2]++
	newer := append([]byte{}, good...)
	newer[8]++ // the version
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		contents []byte
		change   func(*cluster.Config)
		want     []string
	}{
		"truncated":     {good[:len(good)/2], nil, []string{"server.checkpoint", "corrupt", "remove it to start over"}},
		"empty":         {[]byte{}, nil, []string{"server.checkpoint", "not a checkpoint", "if it is another file, name one of the server's own there", "remove it to start over"}},
		"damaged":       {damaged, nil, []string{"server.checkpoint", "corrupt", "remove it to start over"}},
		"newer":         {newer, nil, []string{"server.checkpoint", "unsupported checkpoint version", "continue with the version of Libra that wrote it"}},
		"another model": {good, func(c *cluster.Config) { c.Model.Seed++ }, []string{"server.checkpoint", "seed", "remove it to start over"}},
		"a folder":      {nil, func(c *cluster.Config) { c.Server.Checkpoint = t.TempDir() }, []string{"server.checkpoint", "not a regular file"}},
		"a pipe":        {nil, func(c *cluster.Config) { c.Server.Checkpoint = pipe }, []string{"server.checkpoint", "not a regular file"}},
		"a device":      {nil, func(c *cluster.Config) { c.Server.Checkpoint = os.DevNull }, []string{"server.checkpoint", "not a regular file"}},
		// Root may write everywhere but here.
		"no place to write": {nil, func(c *cluster.Config) { c.Server.Checkpoint = "/proc/self/weights.libra" }, []string{"server.checkpoint", "cannot be written", "/proc/self/weights.libra"}},
	} {
		t.Run(name, func(t *testing.T) {
			theirs := *c
			if test.change != nil {
				test.change(&theirs)
			}
			if test.contents != nil {
				if err := os.WriteFile(c.Server.Checkpoint, test.contents, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
			defer cancel()
			_, err := RunServer(ctx, Env{Config: &theirs, Log: testLog(t)})
			for _, want := range append(test.want, theirs.Server.Checkpoint) {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
			if test.contents != nil {
				if after, err := os.ReadFile(c.Server.Checkpoint); err != nil || string(after) != string(test.contents) {
					t.Errorf("the file has changed: %v", err)
				}
			}
		})
	}
}

// A server that ends holds its job until its last checkpoint is written, however long
// that takes: the lease must not give the job to the next one before.
func TestJobIsHeldUntilTheLastCheckpoint(t *testing.T) {
	c := newCluster(t, 1)
	c.Model.Factors, c.Model.Epochs = 63, 1000
	buildHotSet(t, c)
	startSwitch(t, c)
	conn, err := grpc.NewClient("passthrough:///"+c.Switch.Control.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	operator := pb.NewAggregatorClient(conn)
	stop := make(chan struct{})
	ended := make(chan outcome, 1)
	go func() {
		ended <- trainCluster(t.Context(), t, c, hooks{step: func(_ uint16, p train.Progress, _, endServer func()) {
			if p.Steps == 15 {
				endServer()
				close(stop)
			}
		}})
	}()
	select {
	case <-stop:
	case out := <-ended:
		t.Fatal(out.err())
	}
	for {
		st, err := operator.Stats(t.Context(), &pb.StatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Jobs) == 1 && st.Jobs[0].Held {
			continue
		}
		if _, err := os.Stat(c.Server.Checkpoint); err != nil {
			t.Errorf("jobs %v: the lease runs, and the last checkpoint is not written: %v", st.Jobs, err)
		}
		break
	}
	<-ended
}

// A checkpoint is not written again while nothing was committed, and is after each
// commit.
func TestCheckpointIsWrittenOnceACommit(t *testing.T) {
	s := newServer(t, true)
	s.progress.agreed = func() map[string]string { return map[string]string{} }
	path := s.env.Config.Server.Checkpoint
	save := func() {
		t.Helper()
		if err := s.saveCheckpoint(func(f func()) error { return s.loop.Do(t.Context(), f) }); err != nil {
			t.Fatal(err)
		}
	}
	save()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before the first commit: %v", err)
	}
	for step := range uint64(3) {
		if err := s.commitSync(t.Context(), step); err != nil {
			t.Fatal(err)
		}
		save()
		if _, p := restored(t, path, s.store.Config()); p.Step != step+1 {
			t.Errorf("after %d steps the checkpoint has %d", step+1, p.Step)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		save()
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after step %d it is written again: %v", step+1, err)
		}
	}
}

// A checkpoint has one server at a time, whatever job or switch it belongs to: two
// would write each other's weights over.
func TestCheckpointHasOneServer(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(c.Server.Checkpoint, link); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := RunServer(ctx, Env{Config: c, Log: testLog(t), Ready: func() { close(ready) }})
		ended <- err
	}()
	<-ready
	other := newCluster(t, 1)
	other.Job.ID, other.Switch, other.Port, other.Server.Checkpoint = 6, c.Switch, c.Port, link
	run := func(ready func()) error {
		ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
		defer cancel()
		_, err := RunServer(ctx, Env{Config: other, Log: testLog(t), Ready: func() { ready(); cancel() }})
		return err
	}
	err := run(func() { t.Error("the second server trains, too") })
	for _, want := range []string{"server.checkpoint", c.Server.Checkpoint, fmt.Sprint(os.Getpid()), "a file of its own"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first server ends with %v", err)
	}
	served := false
	if err := run(func() { served = true }); !served {
		t.Errorf("after the end of the first: %v", err)
	}
	if left, _ := filepath.Glob(c.Server.Checkpoint + ".*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// brokenDisk says nothing of its files.
type brokenDisk struct {
	osDisk
	why error
}

func (d brokenDisk) Stat(string) (fs.FileInfo, error) { return nil, d.why }

// A machine with its own disk keeps the checkpoint there.
func TestCheckpointIsOnTheMachinesDisk(t *testing.T) {
	why := errors.New("a head has crashed")
	_, err := RunServer(soon(t), Env{Config: newCluster(t, 1), Machine: Machine{Disk: brokenDisk{why: why}}, Log: testLog(t)})
	if !errors.Is(err, why) {
		t.Errorf("error %v, want that of the disk", err)
	}
}
