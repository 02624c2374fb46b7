// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/train"
)

// A file has been replaced if it is another, or has another size or date.
func TestSameFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	write := func(path, text string, at time.Time) fs.FileInfo {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	at := time.Unix(1_700_000_000, 0)
	was := write(path, "abc", at)
	for name, c := range map[string]struct {
		was, now fs.FileInfo
		same     bool
	}{
		"the same": {was, was, true},
		"no file":  {nil, was, false},
		"longer":   {was, write(path, "abcd", at), false},
		"newer":    {was, write(path, "abc", at.Add(time.Second)), false},
		"another":  {was, write(path+"2", "abc", at), false},
	} {
		if got := sameFile(c.was, c.now); got != c.same {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A server says how it continues, and leaves the checkpoint alone if nothing comes to it.
func TestServerSaysHowItContinues(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	idle := func() (log string, changed bool) {
		t.Helper()
		before, _ := os.Stat(c.Server.Checkpoint)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var all lines
		if _, err := RunServer(ctx, Env{Config: c, Log: all.logger(), Ready: cancel}); !errors.Is(err, context.Canceled) {
			t.Errorf("a server that is told to end: %v", err)
		}
		after, err := os.Stat(c.Server.Checkpoint)
		return all.String(), err == nil && !sameFile(before, after)
	}
	if log, changed := idle(); changed || strings.Contains(log, "checkpoint") {
		t.Errorf("before training, a checkpoint is written, or spoken of:\n%s", log)
	}
	out := trainCluster(t.Context(), t, c, hooks{step: func(_ uint16, p train.Progress, _, endServer func()) {
		if p.Steps == 4 {
			endServer()
		}
	}})
	if out.serverErr == nil {
		t.Fatal("the server goes on")
	}
	_, p := saved(t, c)
	for range 2 {
		log, changed := idle()
		if changed || !strings.Contains(log, `msg="continues from a checkpoint" file=`+c.Server.Checkpoint+" rows=") || !strings.Contains(log, " step=") || p.Step == 0 {
			t.Errorf("step %d; changed %v:\n%s", p.Step, changed, log)
		}
	}
	mustTrain(t, c)
	if log, changed := idle(); changed || !strings.Contains(log, "the checkpoint's training is complete") || !strings.Contains(log, "epochs=1") || strings.Contains(log, "continues from") {
		t.Errorf("complete; changed %v:\n%s", changed, log)
	}
	c.Model.Epochs = 2
	c.Job.Sync = true
	if log, _ := idle(); !strings.Contains(log, "continues from a checkpoint") {
		t.Errorf("a second epoch:\n%s", log)
	}
}

// Asynchronous training has no step in common to speak of.
func TestServerContinuesAsynchronously(t *testing.T) {
	c := newCluster(t, 1)
	c.Job.Sync, c.Job.Harvest = false, 5*time.Millisecond
	startSwitch(t, c)
	mustTrain(t, c)
	c.Model.Epochs = 2
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all lines
	if _, err := RunServer(ctx, Env{Config: c, Log: all.logger(), Ready: cancel}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if log := all.String(); !strings.Contains(log, "continues from a checkpoint") || strings.Contains(log, " step=") {
		t.Errorf("%s", log)
	}
}

// A checkpoint whose name no file can have is refused with its field, and one that is
// replaced by an unusable one while the server waits for its job, too.
func TestCheckpointNames(t *testing.T) {
	c := newCluster(t, 1)
	c.Server.Checkpoint = filepath.Join(t.TempDir(), strings.Repeat("x", 300))
	if _, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)}); err == nil || !strings.HasPrefix(err.Error(), "server.checkpoint: stat ") {
		t.Errorf("a long name: %v", err)
	}
}

// After a checkpoint that failed, training goes on for a while before the next try,
// and the log has the reason once.
func TestFailedCheckpointIsNotRepeatedAtOnce(t *testing.T) {
	c := newCluster(t, 1)
	c.Server.CheckpointSteps = 1
	startSwitch(t, c)
	var all lines
	log := slog.New(slog.NewTextHandler(&all, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var wrote string
	out := trainWith(t.Context(), c, hooks{step: func(_ uint16, p train.Progress, _, _ func()) {
		switch p.Steps {
		case 3:
			for deadline := time.Now().Add(eventLimit); !strings.Contains(all.String(), "checkpoint written"); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Error("no checkpoint is written")
					break
				}
			}
			wrote = all.String()
			// A folder where the file is to be, as soon as the present one is done.
			for os.MkdirAll(filepath.Join(c.Server.Checkpoint+".tmp", "full"), 0o700) != nil {
				time.Sleep(time.Millisecond)
			}
		case 10:
			for deadline := time.Now().Add(eventLimit); !strings.Contains(all.String(), "no checkpoint was written; training goes on"); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Error("no failure is logged")
					break
				}
			}
		}
	}}, log)
	if out.errs[0] != nil || out.serverErr == nil {
		t.Errorf("the worker: %v; the server: %v", out.errs[0], out.serverErr)
	}
	text := all.String()
	if n := strings.Count(text, "no checkpoint was written; training goes on"); n != 1 || !strings.Contains(text, "next_try_in=10s") {
		t.Errorf("%d failures are logged", n)
	}
	if n := strings.Count(text, "the last checkpoint was not written"); n != 1 {
		t.Errorf("%d failures at the end are logged", n)
	}
	if !strings.Contains(wrote, "file="+c.Server.Checkpoint) {
		t.Errorf("before:\n%s", wrote)
	}
}
