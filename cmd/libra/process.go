// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/report"
)

const configHelp = `
All processes of a cluster read the same YAML file; 'libra config example' prints one.`

// process is what the commands switch, ps and worker have in common: they read
// a cluster's configuration, say when they are ready, and print a result.
type process struct {
	config  string
	json    bool
	changes []func(*cluster.Config) // by flags

	mu  sync.Mutex // one line at a time on out
	out io.Writer
}

func (p *process) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.config, "config", "", "cluster configuration `file` (required)")
	cmd.Flags().BoolVar(&p.json, "json", false, "print JSON lines: when ready, progress, the result")
}

// readEnv reads the configuration by [cluster.Read] or [cluster.ReadAny].
func (p *process) readEnv(cmd *cobra.Command,
	read func(string, ...func(*cluster.Config)) (*cluster.Config, error)) (node.Env, error) {
	if p.config == "" {
		return node.Env{}, usagef(cmd, "--config is required")
	}
	c, err := read(p.config, p.changes...)
	if err != nil {
		return node.Env{}, err
	}
	p.out = cmd.OutOrStdout()
	return node.Env{Config: c, Log: slog.Default(), Ready: p.reportReady}, nil
}

func (p *process) reportReady() {
	if !p.json {
		return
	}
	if err := p.printLine(SwitchLine{Ready: new(os.Getpid())}); err != nil { // as package proc reads it
		slog.Warn("cannot announce readiness", "error", err)
	}
}

// printLine prints one JSON object.
func (p *process) printLine(value any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return report.WriteJSON(p.out, value)
}
