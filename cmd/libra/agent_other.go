// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "github.com/spf13/cobra"

// newAgent is a command for Linux only.
func newAgent() *cobra.Command {
	return &cobra.Command{Use: "agent", Hidden: true, Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return usagef(cmd, "the agent needs Linux")
	}}
}
