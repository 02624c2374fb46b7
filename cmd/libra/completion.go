// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"

	"github.com/spf13/cobra"
)

func newCompletion() *cobra.Command {
	shells := map[string]func(root *cobra.Command, w io.Writer) error{
		"bash":       func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"fish":       func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
		"powershell": (*cobra.Command).GenPowerShellCompletionWithDesc,
		"zsh":        (*cobra.Command).GenZshCompletion,
	}
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a completion script for bash, fish, powershell or zsh",
		Long: `Prints a script for a shell: bash, fish, powershell or zsh. With it the Tab key
completes commands, flags, and values from a fixed list of words.`,
		Example: `  source <(libra completion bash)
  libra completion fish >~/.config/fish/completions/libra.fish`,
		ValidArgs: []string{"bash", "fish", "powershell", "zsh"},
		Args:      oneArg("shell"),
		RunE: func(cmd *cobra.Command, args []string) error {
			script, ok := shells[args[0]]
			if !ok {
				return usagef(cmd, "%q is none of bash, fish, powershell, zsh", args[0])
			}
			return script(cmd.Root(), cmd.OutOrStdout())
		},
	}
}
