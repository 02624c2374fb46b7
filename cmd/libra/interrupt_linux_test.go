// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/cluster"
)

// A second interrupt ends a process whose graceful end never completes: its output goes into a full
// pipe.
func TestInterruptedAgainEndsAtOnce(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096)
	if err != nil {
		t.Fatal(err)
	}
	cmd := libra(context.Background(), "completion", "bash")
	cmd.Stdout = w
	var stderr lines
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its exit code is what counts
		close(ended)
	}()
	deadline := time.Now().Add(time.Minute)
	for full := 0; full < size; time.Sleep(time.Millisecond) {
		if full, err = unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the pipe has %d of %d bytes", full, size)
		}
	}
	for {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			break // it has ended
		}
		time.Sleep(50 * time.Millisecond)
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			<-ended
			t.Fatal("it goes on however often it is interrupted")
		}
	}
	<-ended
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || !strings.Contains(stderr.String(), "again") {
		t.Errorf("exit code %d, want %d: %s", code, exitInterrupted, &stderr)
	}
}

// The first SIGINT or SIGTERM requests a graceful end. A SIGINT after a while is a second request.
// One at the same time is the same Ctrl-C delivered twice, and SIGTERM is sent by parents and
// service managers, possibly both.
func TestWishes(t *testing.T) {
	type sent struct {
		after  time.Duration
		signal os.Signal
	}
	const soon, later = sameWish / 2, 2 * sameWish
	for name, c := range map[string]struct {
		signals []sent
		forced  bool // by the last one
	}{
		"once":                 {[]sent{{0, os.Interrupt}}, false},
		"asked to end":         {[]sent{{0, syscall.SIGTERM}}, false},
		"twice":                {[]sent{{0, os.Interrupt}, {later, os.Interrupt}}, true},
		"two ways":             {[]sent{{0, os.Interrupt}, {0, os.Interrupt}, {soon, os.Interrupt}}, false},
		"two ways, then again": {[]sent{{0, os.Interrupt}, {soon, os.Interrupt}, {later, os.Interrupt}}, true},
		"parent and manager":   {[]sent{{0, syscall.SIGTERM}, {later, syscall.SIGTERM}, {later, syscall.SIGTERM}}, false},
		"parent later":         {[]sent{{0, os.Interrupt}, {later, syscall.SIGTERM}}, false},
		"user after parent":    {[]sent{{0, syscall.SIGTERM}, {later, os.Interrupt}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals, begun, forced := make(chan os.Signal), 0, false
				var ctx context.Context
				ctx = untilInterrupted(signals, func() {
					if begun++; ctx.Err() != nil {
						t.Error("the context ends first")
					}
				}, func() { forced = true })
				defer close(signals)
				synctest.Wait()
				if ctx.Err() != nil {
					t.Fatal("ended before any signal")
				}
				for i, s := range c.signals {
					time.Sleep(s.after)
					signals <- s.signal
					synctest.Wait()
					if last := i+1 == len(c.signals); ctx.Err() == nil || begun != 1 || forced != (c.forced && last) {
						t.Errorf("after signal %d: context %v, begun %d times, forced %v", i+1, ctx.Err(), begun, forced)
					}
				}
			})
		})
	}
}

// A graceful end continues when the reader of the log has ended, as tee does on the same Ctrl-C.
func TestInterruptedWithItsLogReader(t *testing.T) {
	t.Parallel()
	config := edited(t, handMade(t), "epochs: 2", "epochs: 100000")
	begin(t, "switch", "--config", config, "--json").stdout.awaitReady(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	server := libra(context.Background(), "ps", "--config", config, "-v") // so that it logs during its end
	server.Stderr = w
	if err := errors.Join(server.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	first := begin(t, "worker", "--config", config, "--id", "1", "--json")
	begin(t, "worker", "--config", config, "--id", "4", "--json")
	first.stdout.await(t, "progress", 2) // so that a step is committed
	if err := errors.Join(server.Process.Signal(os.Interrupt), r.Close()); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait() // its exit code is what counts
	if code := server.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("%v, want exit code %d", server.ProcessState, exitInterrupted)
	}
	c, err := cluster.Read(config)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(c.Server.Checkpoint + "*"); !slices.Equal(left, []string{c.Server.Checkpoint}) {
		t.Errorf("it leaves %v, want its last checkpoint", left)
	}
}
