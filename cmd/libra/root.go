// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
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
                   the processes of a cluster, for separate hosts

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 removed, 130 interrupted.`,
		Version:       fullVersion(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("libra {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	verbose := root.PersistentFlags().BoolP("verbose", "v", false, "log details to standard error")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		setUpLog(*verbose)
		return checkFlags(cmd)
	}
	root.AddCommand(newDemo(), newSwitch(), newServer(), newWorker(), newAgent(), newRun(), newGLM(), newStats(),
		newLatency(), newTop(), newJob(), newCapture(), newHotset(), newPlan(), newConfig(), newExport(), newPredict(),
		newEvaluate(), newLut(),
		newCodec(), newP4(), newBench(), newSimulate(), newChaos(), newCompletion(), newVersion(), newReference())
	root.CompletionOptions.DisableDefaultCmd = true // it takes any word for a shell
	root.InitDefaultHelpCmd()
	groups(root)
	completeFlags(root)
	return root
}

// groups gives commands that only contain subcommands a behaviour of their own: help, and a usage
// error for arguments that are no subcommand.
func groups(c *cobra.Command) {
	for _, sub := range c.Commands() {
		groups(sub)
		if sub.Name() == "help" { // which takes any word for a command
			sub.Args = func(cmd *cobra.Command, args []string) error {
				if found, rest, err := cmd.Root().Find(args); err != nil || len(rest) > 0 {
					return usagef(cmd, "%q is no command of %q", strings.Join(args, " "), found.CommandPath())
				}
				return nil
			}
		}
	}
	if c.Runnable() {
		return
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := ""
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usagef(cmd, "unknown command %q for %q%s", args[0], cmd.CommandPath(), hint)
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	c.SuggestionsMinimumDistance = 2
	c.Annotations = map[string]string{groupAnnotation: ""}
}

const groupAnnotation = "libra_group"

// isGroup reports whether a command does nothing but contain others.
func isGroup(c *cobra.Command) bool {
	_, is := c.Annotations[groupAnnotation]
	return is
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
