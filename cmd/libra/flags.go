// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// choicesOf is the annotation of a flag with what its values can be.
const choicesOf = "libra_choices"

// choices limits a flag, or each value of a flag that takes a list, to some words, which
// shells complete.
func choices(cmd *cobra.Command, flag string, words ...string) {
	f := cmd.Flags().Lookup(flag)
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[choicesOf] = words
	complete := func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		before := "" // the values that a list has already
		if _, isList := f.Value.(pflag.SliceValue); isList {
			before = typed[:strings.LastIndex(typed, ",")+1]
		}
		var all []cobra.Completion
		for _, w := range words {
			if strings.HasPrefix(before+w, typed) {
				all = append(all, before+w)
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // a flag has two
	}
}

// positive are the flags with which a number or a time above zero is asked for. What
// stands for their default is to leave them out.
var positive = []string{
	"accumulate", "batch", "bound", "c", "count", "counters", "dim", "duration", "epochs", "factors", "for", "harvest",
	"hosts", "hot-rows", "init-scale", "initial-accumulator", "learning-rate", "p", "p4-election", "pairs",
	"parameters", "pid", "placements", "pushes", "rate", "rounds", "rows", "staleness", "top", "window", "within",
	"workers",
}

// shares are those of them that are at most 1.
var shares = []string{"c", "p", "rate"}

// checkFlags refuses values that the command line gave to flags: words that are none of
// the choices, and numbers that ask for nothing, or for less.
func checkFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if problem := checkFlag(f); problem != "" && err == nil {
			err = usagef(cmd, "--%s %s: %s", f.Name, strings.Trim(f.Value.String(), "[]"), problem)
		}
	})
	return err
}

func checkFlag(f *pflag.Flag) (problem string) {
	text := f.Value.String()
	if words := f.Annotations[choicesOf]; words != nil {
		given := []string{text}
		list, isList := f.Value.(pflag.SliceValue)
		if isList {
			given = list.GetSlice()
		}
		for _, g := range given {
			if !slices.Contains(words, g) {
				return fmt.Sprintf("%q is none of %s", g, strings.Join(words, ", "))
			}
		}
		if isList && len(given) == 0 && f.DefValue != "[]" {
			return "choose of " + strings.Join(words, ", ")
		}
	}
	if !slices.Contains(positive, f.Name) {
		return ""
	}
	v, err := strconv.ParseFloat(text, 64)
	if d, failed := time.ParseDuration(text); failed == nil {
		v, err = float64(d), nil
	}
	switch {
	case err != nil: // a list, which the command itself looks at
		return ""
	case math.IsInf(v, 0) || math.IsNaN(v):
		return "it must be a finite number above zero"
	case v <= 0:
		return "it must be above zero"
	case v > 1 && slices.Contains(shares, f.Name):
		return "it is a share, so at most 1"
	}
	return ""
}

// flagError makes a usage error of one of parsing flags, in the words of a user and not
// of the functions that read numbers.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		f := invalid.GetFlag()
		err = fmt.Errorf("--%s %s: %s is required", f.Name, invalid.GetValue(), valueKind(f))
	}
	return &usageError{command: cmd.CommandPath(), err: err}
}

// valueKind describes what a flag takes.
func valueKind(f *pflag.Flag) string {
	kinds := map[string]string{
		"bool": "true or false", "duration": "a time such as 500ms, 20s or 1m30s", "float64": "a number",
		"int": "a whole number", "uint": "a whole number from 0 on", "uint64": "a whole number from 0 on",
		"uint16": "a whole number from 0 to 65535", "intSlice": "whole numbers, with commas between them",
		"uintSlice": "whole numbers from 0 on, with commas between them", "float64Slice": "numbers, with commas between them",
	}
	if kind := kinds[f.Value.Type()]; kind != "" {
		return kind
	}
	return "another value"
}

// completeFlags has shells complete folders where flags want them, and nothing where they
// want numbers, in a command and those below it. Files are what shells complete anyway.
func completeFlags(c *cobra.Command) {
	for _, sub := range c.Commands() {
		completeFlags(sub)
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		kind, _ := pflag.UnquoteUsage(f)
		_, has := c.GetFlagCompletionFunc(f.Name)
		switch {
		case has || f.Name == "help":
		case kind == "folder":
			_ = c.MarkFlagDirname(f.Name) // fails for a flag that is not there
		case kind != "file" && f.Value.Type() != "bool" && !strings.HasSuffix(kind, "strings"):
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
		}
	})
	if c.ValidArgsFunction == nil && !strings.Contains(c.Use, "FILE") && !c.HasSubCommands() {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
}
