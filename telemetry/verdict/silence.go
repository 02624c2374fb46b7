// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// silences finds the processes that do not answer: first those for which most workers wait.
func (j *Judge) silences() (all []Finding) {
	waits := map[*followed][]int{} // workers that wait for it
	silent := map[*followed]time.Duration{}
	for _, f := range j.followed {
		if f.silent > telemetrySilent || f.loopSilent() {
			silent[f] = f.silent
			if !f.mute() {
				silent[f] += f.scrapes[len(f.scrapes)-1].Age
			}
			continue
		}
		if n := len(f.scrapes); n > 0 {
			last := f.scrapes[n-1]
			for peer, d := range last.Silent {
				to := j.peer(peer)
				if to == nil || d < framesSilent {
					continue
				}
				waits[to] = append(waits[to], f.ID)
				silent[to] = max(silent[to], d+last.Age+f.silent)
			}
		}
	}
	for f, d := range silent {
		steps, waited := j.awaited(f) >= framesSilent, len(waits[f])
		if steps {
			waited = max(1, waited)
		}
		all = append(all, Finding{Kind: "silent", Name: f.Name(), Excess: d, Text: f.silence(d, waits[f], steps),
			waited: waited, spare: f.Role == Switch || f.Role == Standby})
	}
	// One for which others wait is the reason, however long the others are silent.
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.waited, a.waited), cmp.Compare(b.Excess, a.Excess), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// awaited returns for how long others had waited for a worker at the end of the open step, when the
// server was asked: that step may have ended since.
func (j *Judge) awaited(w *followed) (longest time.Duration) {
	for _, s := range j.followed {
		n := len(s.scrapes)
		if w.Role != Worker || s.Role != Server || n == 0 || s.mute() {
			continue
		}
		longest = max(longest, s.scrapes[n-1].Awaited[fmt.Sprint(w.ID)])
	}
	return longest
}

// mute reports whether the process shows no telemetry.
func (f *followed) mute() bool { return f.silent > telemetrySilent }

// loopSilent reports whether a process shows its telemetry and does not answer itself.
func (f *followed) loopSilent() bool {
	n := len(f.scrapes)
	return n > 0 && f.scrapes[n-1].Age >= loopSilent
}

// spares reports whether frames to the aggregator may go to a process beside the switch.
func (f *followed) spares() bool { return f.Role == Standby || f.Role == Switch && f.Of != "" }

// peer finds the process at the other end of a worker's flow. Frames to the aggregator go to the
// switch, to another one, or to a standby: if there are some, to that which does not answer.
func (j *Judge) peer(peer string) (to *followed) {
	name := peerName(peer)
	for _, f := range j.followed {
		switch {
		case f.Name() == name && (to == nil || f.mute()):
			to = f
		case name == string(Switch) && f.spares() && f.mute() && to != nil && !to.mute():
			to = f
		}
	}
	return to
}

// silence describes a silent process, and those that wait for it: for answers, or at the end of a
// step.
func (f *followed) silence(d time.Duration, waits []int, steps bool) string {
	var why []string
	if steps {
		why = append(why, "others wait at the end of a step")
	}
	if len(waits) > 0 {
		s := " wait"
		if len(waits) == 1 {
			s = " waits"
		}
		why = append(why, workers(waits)+s)
	}
	reason := ""
	if f.reason != "" {
		reason = " (" + f.reason + ")"
	}
	switch {
	case f.mute() && len(f.scrapes) == 0:
		why = append(why, "its telemetry has not answered yet"+reason)
	case f.mute() && len(waits) > 0:
		why = append(why, "its telemetry does not answer either"+reason)
	case f.mute():
		why = append(why, "its telemetry does not answer"+reason)
	case f.loopSilent():
		why = append(why, "its telemetry answers, its loop does not")
	default:
		why = append(why, "its telemetry answers")
	}
	return fmt.Sprintf("%s silent for %.1f s: %s", f.Name(), d.Seconds(), strings.Join(why, "; "))
}

// workers names workers: "worker 1", "workers 1-4, 7".
func workers(ids []int) string {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	var ranges []string
	for i := 0; i < len(ids); {
		end := i + 1
		for end < len(ids) && ids[end] == ids[end-1]+1 {
			end++
		}
		if end-i > 2 {
			ranges = append(ranges, fmt.Sprintf("%d-%d", ids[i], ids[end-1]))
		} else {
			for _, id := range ids[i:end] {
				ranges = append(ranges, fmt.Sprint(id))
			}
		}
		i = end
	}
	s := ""
	if len(ids) > 1 {
		s = "s"
	}
	return "worker" + s + " " + strings.Join(ranges, ", ")
}
