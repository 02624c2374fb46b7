// SPDX-License-Identifier: Apache-2.0

// Package settings is the one home of the settings of a training: name, default, possible values
// and explanation of each. The cluster file and its page, the flags of the commands and their help,
// and package train read them here, so that there is no second default and no second explanation.
//
// A command may have another default, because it knows the data: 'libra demo' takes those of a
// recipe, which stand here beside the general one.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package settings

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Field is one setting.
type Field[T comparable] struct {
	// Path is its name in the cluster file.
	Path string
	// Default is its value where none is given, in the cluster file and in package train. The zero
	// value means that there is no other.
	Default T
	// About explains it in one sentence without a full stop, and names the unit.
	About string
	// Range are the possible values, and When the condition under which it may be given.
	Range, When string
	// Example is a value for the example of a cluster file, where that has no default to show.
	Example string

	flag                string // the name of the flag, if it is not the last part of the path
	smallData, clickLog T      // values of the recipes, if they are not the default
}

// SmallData returns the value in train.SmallData.
func (f Field[T]) SmallData() T { return cmp.Or(f.smallData, f.Default) }

// ClickLog returns the value in train.ClickLog.
func (f Field[T]) ClickLog() T { return cmp.Or(f.clickLog, f.Default) }

// Possible returns the possible values with their condition, in the words of the cluster file.
func (f Field[T]) Possible() string {
	return strings.Trim(f.Range+"; "+f.When, "; ")
}

// Flag returns the name of the flag of commands that have one.
func (f Field[T]) Flag() string {
	return cmp.Or(f.flag, strings.ReplaceAll(f.Path[strings.LastIndexByte(f.Path, '.')+1:], "_", "-"))
}

// Help returns what a flag's help says about the field, and then, in brackets, that it has the
// given default; an empty one is the flag's own, which the help shows anyway.
func (f Field[T]) Help(fallback string) string {
	first, size := utf8.DecodeRuneInString(f.About)
	help := string(unicode.ToLower(first)) + f.About[size:]
	if f.When != "" {
		help += "; " + strings.ReplaceAll(f.When, "with sync", "with --sync")
	}
	if fallback != "" {
		help += " (default " + fallback + ")"
	}
	return help
}

// Usual is the default as text, for Help.
func (f Field[T]) Usual() string { return fmt.Sprint(f.Default) }

// Name returns Path.
func (f Field[T]) Name() string { return f.Path }

// Sentence returns About.
func (f Field[T]) Sentence() string { return f.About }

// An Entry is a field whatever the type of its values.
type Entry interface {
	Name() string
	Sentence() string
	Possible() string
	Flag() string
	Help(fallback string) string
	Usual() string
}
