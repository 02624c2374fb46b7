// SPDX-License-Identifier: Apache-2.0

// Command libra runs and studies in-network gradient aggregation: the demo, the
// processes of a cluster, hot sets and benchmarks. 'libra help' lists what
// there is.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/file"
)

// Exit codes, for scripts.
const (
	exitFailure     = 1   // what was asked for failed
	exitUsage       = 2   // the command line is wrong
	exitRemoved     = 3   // an operator removed the job: its unit is not to start it again
	exitInterrupted = 130 // SIGINT or SIGTERM ended the run
)

// exitCodes are all of them with their meanings, for help and documents.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{0, "success"},
	{exitFailure, "failure: standard error has the reason"},
	{exitUsage, "wrong usage: the command line is wrong, and nothing was done"},
	{exitRemoved, "removed: an operator removed the server's job ('libra job remove'), which is not to be started again by itself"},
	{exitInterrupted, "interrupted by Ctrl-C or SIGTERM"},
}

func main() { os.Exit(run()) }

func run() int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// The reader of the log may get the same Ctrl-C. To write to it would then end this
	// process before its time, unless it asks for SIGPIPE.
	outliveReaders := func() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
	ctx := untilInterrupted(signals, outliveReaders, func() {
		fmt.Fprintln(os.Stderr, "libra: interrupted again")
		os.Exit(exitInterrupted)
	})
	stderr := io.Writer(os.Stderr)
	if toJournal(os.Stderr) {
		stderr = lastWords{os.Stderr}
	}
	return exitCode(stderr, newRoot().ExecuteContext(ctx), ctx.Err() != nil)
}

// exitCode writes why a command ended, if it failed, and returns its exit code.
func exitCode(stderr io.Writer, err error, interrupted bool) int {
	var usage *usageError
	var worker *demo.WorkerError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "libra: %v\nRun '%s --help' for usage.\n", err, usage.command)
		return exitUsage
	case interrupted && !errors.Is(err, node.ErrNotSaved):
		fmt.Fprint(stderr, interruptedText)
		return exitInterrupted
	case errors.Is(err, control.ErrRemoved):
		fmt.Fprintf(stderr, "libra: %v\n", err)
		return exitRemoved
	case errors.As(err, &worker):
		fmt.Fprintf(stderr, "libra: %v\n", err)
		return worker.Code
	default:
		fmt.Fprintf(stderr, "libra: %v%s\n", err, remedyOfTemporary(err))
		return exitFailure
	}
}

// remedyOfTemporary returns what to do if the folder of temporary files was missing or refused
// a folder of ours: most users do not know of it.
func remedyOfTemporary(err error) string {
	var failed *fs.PathError
	temp := os.TempDir()
	if !errors.As(err, &failed) || errors.Is(err, file.ErrNotRegular) || failed.Path != temp &&
		(failed.Op != "mkdir" || filepath.Dir(failed.Path) != filepath.Clean(temp)) {
		return ""
	}
	return fmt.Sprintf(": temporary files go to %s: create that folder, or set TMPDIR to one that you can write to", temp)
}

// sameWish is how far apart two signals may be and still come of one Ctrl-C: the
// terminal sends one, and possibly a parent that received it too.
const sameWish = 500 * time.Millisecond

// untilInterrupted returns a context that the first signal ends, after a call of begin.
// After that, force is called when the user interrupts again. SIGTERM does not count as
// that: a parent and a service manager may both send it.
func untilInterrupted(signals <-chan os.Signal, begin, force func()) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		first := time.Now()
		begin()
		cancel()
		for s := range signals {
			if s == os.Interrupt && time.Since(first) > sameWish {
				force()
			}
		}
	}()
	return ctx
}
