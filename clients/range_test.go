// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"fmt"
	"testing"
)

// C programs own two jobs, on two hosts, and C programs on both hosts push to both, while frames
// are lost, duplicated and reordered: the owners get the exact sums.
func TestOwnersInC(t *testing.T) {
	t.Parallel()
	const pushes = 400
	b := newRangeBed(t, 2, 2)
	owners := []*rangeProgram{b.own(0, "hot/0"), b.own(1, "hot/1")}
	var want [2][rangeRows][dim]float64
	var pushers []*rangeProgram
	for job := range owners {
		for i := range 4 {
			number := 1 + i + 10*job
			pushers = append(pushers, b.push(i%2, fmt.Sprintf("hot/%d", job), number, pushes))
			added(&want[job], number, pushes)
		}
	}
	for _, p := range pushers {
		b.await(p, pushes/2)
	}
	for _, o := range owners {
		b.harvestNow(o)
	}
	for _, p := range pushers {
		b.await(p, pushes)
		if err := p.cmd.Wait(); err != nil {
			t.Fatalf("a pusher has ended with %v\n%s", err, p.log.String())
		}
	}
	for job, o := range owners {
		if got := b.sums(o); got != want[job] {
			t.Errorf("job %d: the sums are %v, want %v", job, got, want[job])
		}
	}
}

// The same over AF_XDP. The links, which the agents opened at their start, serve one owner after
// the other.
func TestOwnersOverAFXDP(t *testing.T) {
	t.Parallel()
	const pushes = 200
	b := newRangeBedOverAFXDP(t, 2)
	for life := range 3 {
		owner := b.own(life%2, "hot/0")
		var want [rangeRows][dim]float64
		var pushers []*rangeProgram
		for i := range 4 {
			pushers = append(pushers, b.push(i%2, "hot/0", 1+life+i, pushes))
			added(&want, 1+life+i, pushes)
		}
		for _, p := range pushers {
			b.await(p, pushes)
		}
		if got := b.sums(owner); got != want {
			t.Errorf("owner %d has the sums %v, want %v", life, got, want)
		}
	}
}

// A Python program owns a job and pushes to it. Its buffers hold a part of a harvest only.
func TestOwnerInPython(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 1, 2)
	run(t, python(t, &bed{socket: b.socket(0)}, "-c", `
import time, numpy as np, libra
try:
    libra.Session("hot/1")
    assert False
except libra.JobNotOpen as e:
    assert e.name == "NOT_OPEN", e.name
with libra.Session("hot/0", owner=True, buffer_bytes=4096) as owner, libra.Session("hot/0") as pusher:
    keys = np.arange(7, 7 + 3 * 300, 3)
    for n in (1, 2):
        pusher.push(keys, np.full((300, 2), n, np.float32))
        pusher.flush()
        got, sums = owner.harvest(now=n == 2)
        assert got.tolist() == keys.tolist() and (sums == n).all(), (got, sums)
    got, sums = owner.harvest(now=True)
    assert got.shape == (0,) and sums.shape == (0, 2)
    for call in (lambda: pusher.pull(keys), lambda: pusher.push([7, 8], np.ones((2, 2), np.float32)) or pusher.flush()):
        try:
            call()
            assert False
        except libra.NoServer as e:
            assert e.key in (None, 8), e.key
    try:
        pusher.harvest()
        assert False
    except libra.Error as e:
        assert e.name == "NOT_OWNER" and "options.owner" in str(e), e
    owner.close()
    try:
        while True:
            pusher.flush()
    except libra.JobEnded:
        pusher.abandon()
`))
}
