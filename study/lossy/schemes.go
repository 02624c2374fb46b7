// SPDX-License-Identifier: Apache-2.0

package lossy

import (
	"fmt"

	"github.com/libra-ina/libra/codec"
)

// Lossless is the scheme that all are compared with.
const Lossless = "float32"

// Bounds are those of the paper's Table III: errors below 2^-10, 2^-8 and 2^-6.
var Bounds = []int{10, 8, 6}

// scheme is a way to exchange gradients.
type scheme struct {
	name string
	what string // in a sentence
	make func(workers, values int) (exchange, error)
}

func ringScheme(name, what string, feedback bool, l func() (link, error)) scheme {
	return scheme{name, what, func(workers, values int) (exchange, error) {
		made, err := l()
		return newRing(made, feedback, workers, values), err
	}}
}

// schemes returns all schemes, in the order of the tables.
func schemes() (all []scheme) {
	all = append(all, ringScheme(Lossless, "a ring of float32", false, func() (link, error) { return floats{}, nil }))
	add := func(name, what string, feedback bool, l func() (link, error)) {
		all = append(all, ringScheme(name, what, feedback, l))
	}
	for _, bound := range Bounds {
		made := func() (link, error) { return newCoded(codec.Config{Bound: bound}) }
		add(CodedName(bound), fmt.Sprintf("a ring of codes with an error below 2^-%d, and error feedback", bound), true, made)
		add(CodedName(bound)+" lost", "the same, what is cut is lost", false, made)
		add(CodedName(bound)+" as printed", "Algorithms 2 and 3 as the paper prints them", false, func() (link, error) {
			return newCoded(codec.Config{Bound: bound, Paper: true})
		})
	}
	for _, bits := range []int{16, 22, 24} {
		add(fmt.Sprintf("%d bits cut", bits), "a ring of float32 without their lowest bits (Figures 4 and 14)", false,
			func() (link, error) { return truncated{bits}, nil })
	}
	add("8 bits", "a ring of multiples of a 127th of each block's largest magnitude", false,
		func() (link, error) { return scaled{}, nil })
	all = append(all, scheme{"top 1 %", "the hundredth of each worker's values that is largest, with places, and error feedback",
		func(workers, values int) (exchange, error) { return newLargest(0.01, workers, values), nil }})
	return all
}

// CodedName is the name of the scheme with a bound and error feedback.
func CodedName(bound int) string { return fmt.Sprintf("2^-%d", bound) }

// Schemes returns the names of all schemes.
func Schemes() (names []string) {
	for _, s := range schemes() {
		names = append(names, s.name)
	}
	return names
}
