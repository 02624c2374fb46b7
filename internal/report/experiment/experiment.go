// SPDX-License-Identifier: Apache-2.0

// Package experiment is what all experiments and studies share: turns that
// subjects take round by round ([TakeTurns]), the statistics of their samples
// ([SpreadOf], [Ratios]), verdicts on targets ([Target]), what was not measured
// and why ([Unavailable]), tables and charts ([Report], [Drawn]).
//
// Everything on one machine is slower for a while when its neighbours are busy.
// Hence what is compared takes turns within each round, and a ratio is taken
// within a round before the median over the rounds is.
package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
)

// Report is the outcome of an experiment. It marshals to one JSON object.
type Report interface {
	// Print writes it for people.
	Print(*report.Printer)
}

// A Drawn report has pictures of what was measured.
type Drawn interface {
	Report
	Charts() []chart.Chart
}

// WriteTables writes a report for people.
func WriteTables(w io.Writer, r Report) error {
	out := report.NewPrinter(w)
	r.Print(out)
	return out.Err()
}

// A WithTargets report says what an experiment has to reach, which is of interest to those
// who change Libra.
type WithTargets interface {
	Report
	// DropTargets forgets what was to be reached.
	DropTargets()
}

// Verdict compares a figure with what is wanted of it.
type Verdict struct {
	Want   float64 `json:"want"`
	Got    float64 `json:"got"`
	Met    bool    `json:"met"`
	AtMost bool    `json:"-"` // Want is the largest that will do, instead of the smallest
}

// AtLeast is the verdict on a figure that is better the larger it is.
func AtLeast(want, got float64) Verdict { return Verdict{Want: want, Got: got, Met: got >= want} }

// AtMost is the verdict on a figure that is better the smaller it is.
func AtMost(want, got float64) Verdict {
	return Verdict{Want: want, Got: got, Met: got <= want, AtMost: true}
}

// Target is what an experiment has to reach.
type Target struct {
	What string `json:"what"`
	Verdict
}

// PrintTargets writes a table of targets, if there are any.
func PrintTargets(out *report.Printer, targets []Target) {
	var rows [][]any
	for _, t := range targets {
		bound, word := "at least", "missed"
		if t.AtMost {
			bound = "at most"
		}
		if t.Met {
			word = "met"
		}
		rows = append(rows, []any{t.What, fmt.Sprintf("%s %.2f", bound, t.Want), fmt.Sprintf("%.2f", t.Got), word})
	}
	if rows != nil {
		out.Table("Targets", []string{"target", "wanted", "got", ""}, rows)
	}
}

// Unavailable is what was not measured, and why. An experiment fills the fields
// that say what it was.
type Unavailable struct {
	What     string `json:"what,omitempty"`
	Baseline string `json:"peer,omitempty"`
	Test     string `json:"test,omitempty"`        // empty: in no test
	Size     int    `json:"frame_bytes,omitempty"` // size of the frames in bytes; 0: at no size
	Reason   string `json:"reason"`
	Install  string `json:"install,omitempty"` // what makes it available, if anything does
}

// AddUnavailable notes once what was not measured.
func AddUnavailable(to *[]Unavailable, u Unavailable) {
	if !slices.Contains(*to, u) {
		*to = append(*to, u)
	}
}

// PrintUnavailable writes a paragraph for each entry.
func PrintUnavailable(out *report.Printer, all []Unavailable) {
	for _, u := range all {
		text := "Not measured: " + u.What + u.Baseline
		if u.Test != "" {
			text += ", " + u.Test
		}
		if u.Size > 0 {
			text += fmt.Sprintf(", %d bytes", u.Size)
		}
		text += ": " + u.Reason
		if u.Install != "" {
			text += "\nto have it: " + u.Install
		}
		out.Note("%s", text)
	}
}

// ErrConfig is wrapped by errors about an experiment's configuration.
var ErrConfig = errors.New("invalid configuration")

// ConfigError is one about a field of a configuration, which is called as the flag for it
// is. It wraps [ErrConfig].
type ConfigError struct{ Field, Problem string }

func (e *ConfigError) Error() string { return ErrConfig.Error() + ": " + e.Field + ": " + e.Problem }

// Unwrap returns [ErrConfig].
func (e *ConfigError) Unwrap() error { return ErrConfig }

// ErrUnsupported is the error of experiments that need Linux where there is none.
var ErrUnsupported = fmt.Errorf("network namespaces and XDP exist on Linux only: %w", errors.ErrUnsupported)

// Check joins what is wrong with the configuration of an experiment, under its name.
func Check(experiment string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", experiment, err)
	}
	return nil
}

// InRange returns a [ConfigError] unless all values of a field are within limits, and different.
func InRange[T cmp.Ordered](field string, least, most T, values ...T) error {
	for _, v := range values {
		if !(v >= least && v <= most) { // NaN is not
			return &ConfigError{field, fmt.Sprintf("%v is not from %v to %v", v, least, most)}
		}
	}
	return once(field, values)
}

// Known returns a [ConfigError] unless all values of a field are among the known ones, and
// different.
func Known[T comparable](field string, known []T, values ...T) error {
	for _, v := range values {
		if !slices.Contains(known, v) {
			return &ConfigError{field, fmt.Sprintf("%q is none of %s", fmt.Sprint(v), strings.Trim(fmt.Sprint(known), "[]"))}
		}
	}
	return once(field, values)
}

// once refuses what would be measured twice, and appear twice in the report.
func once[T comparable](field string, values []T) error {
	for i, v := range values {
		if slices.Contains(values[:i], v) {
			return &ConfigError{field, fmt.Sprintf("%v is there twice: give it once", v)}
		}
	}
	return nil
}

// Undo is to be deferred: after a failure it closes what was made before that.
func Undo(err *error, close func() error) {
	if *err != nil {
		*err = errors.Join(*err, close())
	}
}

// Close closes what was opened: it does nothing to nil pointers.
func Close[T any, P interface {
	*T
	io.Closer
}](all ...P) error {
	var errs []error
	for _, p := range all {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}
