// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer/share"
)

// planned is the file with what job.plan needs.
func planned(t *testing.T) *cluster.Config {
	return read(t, "sync: true", "sync: true, plan: auto",
		"address: 127.0.0.12", "address: 127.0.0.12, control: 127.0.0.12:7700",
		"address: 127.0.0.13", "address: 127.0.0.13, control: 127.0.0.13:7700")
}

// Each worker sends each part as the plan says, and the plan of a file is that which is made.
func TestSharesOfAJob(t *testing.T) {
	c, hot := planned(t), hotSet(t, 4000, 1)
	s, err := OfJob(c, hot)
	if err != nil {
		t.Fatal(err)
	}
	o := Defaults()
	o.Objective, o.Pushes = Room, AutoPushes
	r := mustMake(t, c, hot, o)
	cold := 0
	for g, p := range r.Parts {
		for i, name := range s.Switches {
			if slices.Contains(s.Parts[i], uint32(g)) != slices.Contains(p.Switches, name) {
				t.Errorf("part %d is at %v, and share %d is at %s, with parts %v", g, p.Switches, i, name, s.Parts[i])
			}
		}
		for _, from := range p.Senders {
			for _, w := range from.Workers {
				to, want := s.For(w).To[g], share.Cold
				if from.Switch != "" {
					want = slices.Index(s.Switches, from.Switch)
				} else {
					cold++
				}
				if to != want {
					t.Errorf("worker %d sends part %d to share %d, want %d", w, g, to, want)
				}
			}
		}
	}
	if len(s.Switches) < 2 || cold == 0 {
		t.Errorf("switches %v, and %d ways of parts are cold: it shows nothing", s.Switches, cold)
	}
	c.Job.Plan = write(t, r)
	again, err := OfJob(c, hot)
	if err != nil || !slices.Equal(again.Switches, s.Switches) || !slices.Equal(again.For(7).To, s.For(7).To) {
		t.Errorf("from a file: %+v, %v, want %+v", again, err, s)
	}
}

func write(t *testing.T, r *Report) string {
	t.Helper()
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A plan that does not fit the job is refused, with its field and a remedy.
func TestPlansThatDoNotFit(t *testing.T) {
	hot := hotSet(t, 2000, 1)
	for name, one := range map[string]struct {
		change func(*cluster.Config, *Report)
		want   string
	}{
		"another hot set": {func(_ *cluster.Config, r *Report) { r.HotSet = "00" }, "hot_set: the plan is for another hot set"},
		"no such switch":  {func(_ *cluster.Config, r *Report) { r.Parts[0].Switches = []string{"x"} }, `parts[0].switches: "x" is none of the switches`},
		"plain":           {func(_ *cluster.Config, r *Report) { r.Parts[0].Switches = []string{"middle"} }, `parts[0].switches: "middle" is none`},
		"twice":           {func(_ *cluster.Config, r *Report) { r.Parts[0].Switches = []string{"core", "core"} }, `parts[0].switches: "core" is listed twice`},
		"less memory":     {func(c *cluster.Config, _ *Report) { c.Switches[0].Slots = 40 }, `switches: with it, "core" would have 64 slots, and it has room for 40 (switches[0].slots)`},
		"elsewhere": {func(_ *cluster.Config, r *Report) {
			r.Parts[0].Switches = []string{"core"}
			r.Parts[0].Senders[0].Switch = "right"
		}, `parts[0].senders: workers [1 4] send it to "right", which does not have it`},
		"two ways":        {func(_ *cluster.Config, r *Report) { r.Parts[1].Senders[0].Workers = []uint16{1, 1} }, "parts[1].senders: worker 1 is listed twice"},
		"one more worker": {func(c *cluster.Config, _ *Report) { c.Workers[3].ID = 8 }, "parts[0].senders: it does not say where worker 8 sends"},
		"another worker":  {func(_ *cluster.Config, r *Report) { r.Parts[0].Senders[0].Workers = []uint16{1, 4, 9} }, "parts[0].senders: no worker has the number 9"},
		"fewer parts":     {func(_ *cluster.Config, r *Report) { r.Parts = r.Parts[:9] }, "has 63 parts of 32, the plan 9"},
		"other parts":     {func(_ *cluster.Config, r *Report) { r.Rows = 31 }, "at most 64 parts"},
	} {
		c := planned(t)
		r := mustMake(t, c, hot, Defaults())
		one.change(c, r)
		c.Job.Plan = write(t, r)
		if _, err := OfJob(c, hot); err == nil || !strings.Contains(err.Error(), one.want) ||
			!strings.Contains(err.Error(), "job.plan: "+c.Job.Plan) || !strings.Contains(err.Error(), "make the plan again with") {
			t.Errorf("%s: %v, want %q", name, err, one.want)
		}
	}
	c := planned(t)
	c.Model.Batch = 1
	for i := range c.Switches {
		c.Switches[i].Slots = 2000
	}
	if _, err := OfJob(c, hotSet(t, 200_000, 1)); err == nil || !strings.Contains(err.Error(), "switches[0].slots: a part has 3125 slots") {
		t.Errorf("a part that no switch has room for: %v", err)
	}
	c.Workers = c.Workers[:1]
	c.Workers[0].At = "core"
	c.Job.Plan = write(t, mustMake(t, c, hot, Defaults()))
	if _, err := OfJob(c, hot); err == nil || !strings.Contains(err.Error(), "no part is worth its slots at any switch") {
		t.Errorf("one worker: %v", err)
	}
	for text, want := range map[string]string{"{": "is not what 'libra plan --json' prints", "": "is not what"} {
		c.Job.Plan = filepath.Join(t.TempDir(), "plan.json")
		if err := os.WriteFile(c.Job.Plan, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OfJob(c, hot); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	c.Job.Plan += "none"
	if _, err := OfJob(c, hot); err == nil || !strings.Contains(err.Error(), "job.plan: open "+c.Job.Plan) {
		t.Errorf("no file: %v", err)
	}
}
