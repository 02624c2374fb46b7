// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"
)

// above names the function that has called into packages that call each other.
func above(pkgs ...string) string {
	var pcs [24]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for inside := false; ; {
		f, more := frames.Next()
		name := f.Function[strings.LastIndexByte(f.Function, '/')+1:]
		in := slices.ContainsFunc(pkgs, func(pkg string) bool { return strings.HasPrefix(name, pkg) })
		if inside && !in || !more {
			return name
		}
		inside = inside || in
	}
}

// books returns the accounts of a cluster; nil in lives without a cluster.
func (c *clusterLife) books() *accounts {
	if c == nil {
		return nil
	}
	return c.accounts
}

func (s *sim) bound() time.Duration {
	if s.cluster != nil {
		return 5 * time.Minute
	}
	return bound
}

// lockedReader is a source of random numbers for several goroutines.
type lockedReader struct {
	s    *sim
	from *rand.ChaCha8
}

func (r *lockedReader) Read(b []byte) (int, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.from.Read(b)
}

func seeded(rng *rand.Rand) *rand.ChaCha8 {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rng.Uint32())
	}
	return rand.NewChaCha8(seed)
}
