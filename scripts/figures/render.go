// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
)

// Marks around a table.
const (
	beginMark = "<!-- figures "
	markEnd   = " -->"
	endMark   = "<!-- end figures -->"
)

// errMark is wrapped by errors about marks.
var errMark = errors.New("marks of figures")

// render replaces the tables of a document.
func render(text string, r results) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, beginMark)
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, rest, found := strings.Cut(rest, markEnd+"\n")
		if !found {
			return "", fmt.Errorf("%w: %q is not closed", errMark, beginMark+firstLine(rest))
		}
		old, after, found := strings.Cut(rest, endMark)
		if !found || strings.Contains(old, beginMark) {
			return "", fmt.Errorf("%w: %q has no %q", errMark, name, endMark)
		}
		t := tables[name]
		if t == nil {
			return "", fmt.Errorf("%w: there is no table %q", errMark, name)
		}
		fmt.Fprintf(&out, "%s%s%s\n%s%s", beginMark, name, markEnd, t.markdown(r, oldRows(old)), endMark)
		text = after
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// table is one that is rendered.
type table struct {
	header []string
	rows   []row
}

// row is a line of a table.
type row struct {
	label  string // the first cell
	source string // of the figures: a name in commands
	// cells returns the other cells, nil if the result lacks what it takes.
	cells func(results) []string
}

// markdown renders a table. A row without a result is taken from old, by label.
func (t *table) markdown(r results, old map[string]string) string {
	var out strings.Builder
	line := func(cells ...string) {
		out.WriteString(strings.ReplaceAll(fmt.Sprintf("| %s |\n", strings.Join(cells, " | ")), "|  |", "| |"))
	}
	out.WriteString("\n")
	line(t.header...)
	fmt.Fprintf(&out, "|%s\n", strings.Repeat("---|", len(t.header)))
	for _, row := range t.rows {
		if cells := row.cells(r); cells != nil {
			line(append([]string{row.label}, cells...)...)
		} else if kept := old[row.label]; kept != "" {
			out.WriteString(kept + "\n")
		}
	}
	out.WriteString("\n")
	return out.String()
}

// oldRows returns the lines of a table by their first cells.
func oldRows(text string) map[string]string {
	rows := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if cells := strings.Split(line, " | "); len(cells) > 1 {
			rows[strings.TrimPrefix(cells[0], "| ")] = line
		}
	}
	return rows
}
