// Command libra runs and studies in-network gradient aggregation: the demo, the
// processes of a cluster, hot sets and benchmarks. 'libra help' lists what
// there is.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes, for scripts.
const (
	exitFailure     = 1   // what was asked for failed
	exitUsage       = 2   // the command line is wrong
	exitInterrupted = 130 // SIGINT or SIGTERM ended the run
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "libra: %v\nRun '%s --help' for usage.\n", err, usage.command)
		return exitUsage
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "libra: interrupted")
		return exitInterrupted
	default:
		fmt.Fprintf(os.Stderr, "libra: %v\n", err)
		return exitFailure
	}
}
