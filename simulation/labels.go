// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"time"
)

// wallLimit is how long a life may take of wall time: a life that takes longer has a deadlock of
// locks, which virtual time does not detect.
var wallLimit = 10 * time.Minute

// tellNames makes the runtime print the labels of goroutines with their stacks.
var tellNames = sync.OnceFunc(func() {
	_ = os.Setenv("GODEBUG", strings.TrimPrefix(os.Getenv("GODEBUG")+",tracebacklabels=1", ","))
	// A goroutine that a timer has started has no labels, but the others of its bubble do.
	debug.SetTraceback("all")
})

// labelled runs a life so that the output of a crash names it: a panic of the product, which no
// other goroutine can recover from, a deadlock that the bubble detects, or one that it does not.
func (l Life) labelled(o Options, live func()) {
	tellNames()
	replay := o.Replay(l)
	late := time.AfterFunc(wallLimit, func() {
		panic(fmt.Sprintf("simulation: a life has not ended after %v of wall time; live it again: %s", wallLimit, replay))
	})
	defer late.Stop()
	pprof.Do(context.Background(), pprof.Labels("again", replay), func(context.Context) { live() })
}

// Replay returns the command that runs a life again. Cuts of its seed have no options, so they
// follow as a comment.
func (o Options) Replay(l Life) string {
	command := fmt.Sprintf("libra simulate --seed %d --lives %s", o.Seed, l)
	if o.Kinds != ClusterAll {
		command += " --only " + o.Kinds.String()
	}
	if c := o.Cut; !c.none() {
		command += fmt.Sprintf(" # cut down to %+v", c)
	}
	return command
}
