package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// usageError is a mistake on the command line.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef reports a mistake on a command's line.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{command: cmd.CommandPath(), err: fmt.Errorf(format, args...)}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "libra",
		Short: "In-network gradient aggregation for sparse training",
		Long: `Libra sums the gradients of the hottest parameters of a sparse model inside the
network, in an XDP program, and leaves the cold ones to a parameter server.

  libra demo       trains a model on this machine, end to end
  libra switch, libra ps, libra worker
                   the processes of a cluster, for separate hosts`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{command: cmd.CommandPath(), err: err}
	})
	verbose := root.PersistentFlags().BoolP("verbose", "v", false, "log details to standard error")
	root.PersistentPreRun = func(*cobra.Command, []string) { setUpLog(*verbose) }
	root.AddCommand(newDemo(), newSwitch(), newServer(), newWorker(), newStats(), newJob(), newCapture(), newHotset(), newConfig(), newExport(), newPredict(), newEvaluate(), newLut(), newBench(), newVersion())
	return root
}

// setUpLog makes the default logger write plain lines to standard error.
func setUpLog(verbose bool) {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				a.Value = slog.StringValue(a.Value.Time().Format("15:04:05.000"))
			}
			return a
		},
	})))
}

// oneArg demands one argument.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef(cmd, "one %s is required, %d are given", what, len(args))
		}
		return nil
	}
}

// noArgs refuses arguments as a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef(cmd, "unexpected argument %q", strings.Join(args, " "))
	}
	return nil
}
