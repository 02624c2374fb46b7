// SPDX-License-Identifier: Apache-2.0

// Command figures writes measured tables into the documentation. Each stands
// between two marks, <!-- figures NAME --> and <!-- end figures -->, behind the
// command that measures it; see tables in tables.go.
//
//	figures -libra bin/libra -out out/figures
//
// runs the commands with --json, keeps their results in a directory, one file
// for each, and renders the tables from them. Without -libra it renders from the
// files of an earlier run. A row whose result is not there stays as it is. A
// person reviews the difference before it is committed.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// documents have the tables.
var documents = []string{"README.md", "docs/performance.md"}

func main() {
	libra := flag.String("libra", "", "`program` that measures (default: nothing is measured)")
	out := flag.String("out", "out/figures", "`directory` of the results")
	only := flag.String("only", "", "measure these of "+strings.Join(sources(), ",")+" only (default: all)")
	flag.Parse()
	if err := run(*libra, *out, *only); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(libra, out, only string) error {
	wanted := sources()
	if only != "" {
		wanted = strings.Split(only, ",")
	}
	if libra != "" {
		if err := os.MkdirAll(out, 0o755); err != nil {
			return err
		}
		for _, source := range wanted {
			if !slices.Contains(sources(), source) {
				return fmt.Errorf("no measurement %q; there are %v", source, sources())
			}
			if err := measure(libra, source, out); err != nil {
				return err
			}
		}
	}
	r, err := read(out)
	if err != nil {
		return err
	}
	for _, path := range documents {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rendered, err := render(string(text), r)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(path, []byte(rendered), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// measure runs a source's command and keeps its result.
func measure(libra, source, out string) error {
	cmd := exec.Command(libra, strings.Fields(commands[source] + " --json")[1:]...)
	cmd.Stderr = os.Stderr // the progress
	result, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", commands[source], err)
	}
	return os.WriteFile(filepath.Join(out, source+".json"), result, 0o644)
}

// read reads the results that are in a directory.
func read(dir string) (r results, err error) {
	for source, into := range map[string]any{
		"engine": &r.engine, "push": &r.push, "aggregator": &r.aggregator, "tenants": &r.tenants, "soak": &r.soak,
	} {
		path := filepath.Join(dir, source+".json")
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", path, err)
		}
	}
	return r, nil
}
