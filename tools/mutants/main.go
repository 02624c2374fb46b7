// SPDX-License-Identifier: Apache-2.0

// Command mutants measures the tests: it changes the code of one place at a
// time, runs the tests that guard it, and lists the changes that no test sees.
//
// The mutants of the XDP program, which is C, are a list (see xdp.go). For Go,
// Gremlins (pinned in tools/go.mod) finds the operators that can be changed. Its
// own runner is not used: it counts a mutant that does not compile as killed
// (go test exits with 1 for both), it supports neither tests of dependants nor
// mutants that are known to be equivalent, and it cannot draw a sample. It also
// lacks two kinds of mutation that tests miss more often than operators: a
// removed statement, and two swapped arguments of one type. Those, and the
// negation of conditions without an operator, are found here.
//
// Mutants are compiled with go test -c -overlay, so that the work tree is not
// changed: all of a package at once where possible. The tests of each stage run
// one after the other, with a limit of time.
//
// The command runs in the root directory of Libra's module, and is a module of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags of the command line.
type options struct {
	packages string
	sample   int
	seed     uint64
	jobs     int
	min      float64
	json     string
	list     bool
	only     string
	slack    time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.packages, "pkg", "", "comma-separated directories of packages; empty: all of them")
	flag.IntVar(&o.sample, "sample", 0, "number of mutants to try of each package, drawn with -seed; 0: all")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the sample")
	flag.IntVar(&o.jobs, "jobs", 1,
		"mutants that are tried at once, 1 or 2; 2 only for packages whose tests make no network interfaces")
	flag.Float64Var(&o.min, "min", 95, "percentage of effective mutants that must be killed in each package")
	flag.StringVar(&o.json, "json", "", "file for the results as JSON")
	flag.BoolVar(&o.list, "list", false, "list the mutants, in the file of -json too, and do not run them")
	flag.StringVar(&o.only, "only", "",
		"only mutants whose line in the report contains this, for example wire/rows.go:61:")
	flag.DurationVar(&o.slack, "slack", 20*time.Second,
		"time that is added to the limit of a mutant's tests, which is five times what they take without it")
	flag.Parse()
	if flag.NArg() > 0 || o.jobs < 1 || o.jobs > 2 || o.sample < 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run tries the mutants of the chosen packages. It reports whether each package
// reaches the minimum and every entry of the list of equivalents holds.
func run(ctx context.Context, o options) (bool, error) {
	root, err := moduleRoot()
	if err != nil {
		return false, err
	}
	chosen, err := choose(o.packages)
	if err != nil {
		return false, err
	}
	known, err := loadEquivalents(filepath.Join(root, equivalentsFile))
	if err != nil {
		return false, err
	}
	temp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(temp) }()

	results, good := report{Seed: o.seed, Sample: o.sample}, true
	for _, t := range chosen {
		mutants, compiles, err := mutantsOf(ctx, root, t.dir, known)
		if err != nil {
			return false, err
		}
		mutants = draw(mutants, compiles, o)
		if o.only != "" && len(mutants) == 0 {
			continue
		}
		if o.list {
			for _, m := range mutants {
				fmt.Println(m)
			}
			results.addPackage(t.dir, mutants)
			continue
		}
		r := runner{root: root, temp: temp, target: t, jobs: o.jobs, slack: o.slack}
		tried, err := r.tryMutants(ctx, mutants)
		results.addPackage(t.dir, tried)
		if err != nil && !errors.Is(err, context.Canceled) {
			return false, err
		}
		good = results.printPackage(os.Stdout, t.dir, o.min) && good
		if err != nil {
			good = false
			break
		}
	}
	if o.only != "" && len(results.Packages) == 0 {
		return false, fmt.Errorf("the line of no mutant contains %q: -list prints the lines", o.only)
	}
	if !o.list {
		results.printTotal(os.Stdout)
	}
	if o.json != "" {
		return good, results.writeJSON(o.json)
	}
	return good, nil
}

// mutantsOf lists the mutants of a target, and returns a function that reports whether one
// compiles.
func mutantsOf(ctx context.Context, root, dir string, known equivalents) ([]*mutant, func(*mutant) bool, error) {
	if dir == xdp {
		mutants, err := xdpMutants(root)
		return mutants, func(*mutant) bool { return true }, err
	}
	p, err := load(ctx, root, dir)
	if err != nil {
		return nil, nil, err
	}
	mutants, err := p.findMutants(ctx)
	if err != nil {
		return nil, nil, err
	}
	return mutants, p.mutantCompiles, known.markMutants(root, dir, mutants)
}

// draw takes a sample of the mutants that compile: the same for the same seed and the same code.
// To check all of a large package takes minutes.
func draw(mutants []*mutant, compiles func(*mutant) bool, o options) []*mutant {
	if o.only != "" {
		mutants = slices.DeleteFunc(mutants, func(m *mutant) bool { return !strings.Contains(m.String(), o.only) })
	}
	if o.sample == 0 {
		return slices.DeleteFunc(mutants, func(m *mutant) bool { return !compiles(m) })
	}
	random := rand.New(rand.NewPCG(o.seed, 0))
	var drawn []*mutant
	for _, i := range random.Perm(len(mutants)) {
		if len(drawn) < o.sample && compiles(mutants[i]) {
			drawn = append(drawn, mutants[i])
		}
	}
	slices.SortFunc(drawn, byPlace)
	return drawn
}

// moduleRoot finds the directory of go.mod above the working directory.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	file := strings.TrimSpace(string(out))
	if err == nil && (file == "" || file == os.DevNull) {
		err = errors.New("no go.mod in this folder or above it")
	}
	return filepath.Dir(file), err
}
