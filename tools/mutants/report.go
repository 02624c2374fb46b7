// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// A report contains the results of a run, by package.
type report struct {
	Seed     uint64   `json:"seed"`
	Sample   int      `json:"sample"` // mutants of each package, 0: all
	Packages []counts `json:"packages"`
}

// counts are the results of a package.
type counts struct {
	Package    string    `json:"package"`
	Killed     int       `json:"killed"` // including those whose tests timed out
	TimedOut   int       `json:"timed_out"`
	Survived   int       `json:"survived"`
	Equivalent int       `json:"equivalent"`
	Mistaken   int       `json:"mistaken"` // on the list of equivalents, but killed
	Broken     int       `json:"not_compiled"`
	Mutants    []*mutant `json:"mutants,omitempty"`
}

func (r *report) addPackage(dir string, mutants []*mutant) {
	c := counts{Package: dir, Mutants: mutants}
	for _, m := range mutants {
		switch m.Result {
		case killed:
			c.Killed++
		case timedOut:
			c.Killed++
			c.TimedOut++
		case survived:
			c.Survived++
		case equivalent:
			c.Equivalent++
		case mistaken:
			c.Mistaken++
		case broken:
			c.Broken++
		}
	}
	r.Packages = append(r.Packages, c)
}

// killedPercent is the share of the effective mutants that are killed.
func (c counts) killedPercent() float64 {
	if c.Killed+c.Survived == 0 {
		return 100
	}
	return 100 * float64(c.Killed) / float64(c.Killed+c.Survived)
}

func (c counts) String() string {
	if c.Killed+c.Survived+c.Equivalent+c.Mistaken+c.Broken == 0 {
		return fmt.Sprintf("%-20s no mutant was tried", c.Package)
	}
	return fmt.Sprintf("%-20s %6d killed (%d by time) %5d survived %5d equivalent %6.1f %%",
		c.Package, c.Killed, c.TimedOut, c.Survived, c.Equivalent, c.killedPercent())
}

// printPackage writes the results of the package that was added last, and its survivors. It reports
// whether the package reaches the minimum and every listed equivalent survived.
func (r *report) printPackage(w io.Writer, dir string, least float64) bool {
	c := r.Packages[len(r.Packages)-1]
	_, _ = fmt.Fprintln(w, c)
	for _, m := range c.Mutants {
		switch m.Result {
		case survived:
			_, _ = fmt.Fprintln(w, "  survived:", m)
		case mistaken:
			_, _ = fmt.Fprintf(w, "  %s kills %v: remove it from %s\n", m.By, m, equivalentsFile)
		}
	}
	if c.killedPercent() < least {
		_, _ = fmt.Fprintf(w, "  %s: less than %g %% of the effective mutants killed\n", dir, least)
	}
	return c.killedPercent() >= least && c.Mistaken == 0
}

func (r *report) printTotal(w io.Writer) {
	total := counts{Package: "total"}
	for _, c := range r.Packages {
		total.Killed += c.Killed
		total.TimedOut += c.TimedOut
		total.Survived += c.Survived
		total.Equivalent += c.Equivalent
	}
	if len(r.Packages) > 1 {
		_, _ = fmt.Fprintln(w)
		for _, c := range r.Packages {
			_, _ = fmt.Fprintln(w, c)
		}
		_, _ = fmt.Fprintln(w, total)
	}
}

func (r *report) writeJSON(name string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}
