// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer"
)

// file has three switches in a row, with a plain one between two of them.
const file = `
backend: udp
job: {id: 3, hot_set: hot.libra, sync: true}
switch: {address: 127.0.0.2, control: 127.0.0.2:7700}
switches:
  - {name: core, address: 127.0.0.2, links: [middle, right], slots: 1000}
  - {name: middle, plain: true}
  - {name: left, address: 127.0.0.12, links: [middle], slots: 1000}
  - {name: right, address: 127.0.0.13, slots: 1000}
server: {address: 127.0.0.3, control: 127.0.0.3:7701, at: core}
workers:
  - {id: 1, address: 127.0.0.4, at: left}
  - {id: 4, address: 127.0.0.5, at: left}
  - {id: 5, address: 127.0.0.6, at: right}
  - {id: 7, address: 127.0.0.7, at: middle}
model: {kind: lr, batch: 64}
data: {train: train.libfm}
`

func read(t *testing.T, changes ...string) *cluster.Config {
	t.Helper()
	text := strings.NewReplacer(changes...).Replace(file)
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// hotSet has rows whose counts, of 10,000 rows of a sample, follow Zipf's law.
func hotSet(t *testing.T, rows, dim int) *packer.HotSet {
	t.Helper()
	var keys, counts []uint64
	meta := packer.Meta{Rows: 10_000}
	for i := range rows {
		keys, counts = append(keys, uint64(i)), append(counts, 9000/uint64(i+1)+1)
		meta.Covered += counts[i]
	}
	meta.Updates = 2 * meta.Covered
	h, err := packer.NewHotSet(dim, keys, counts, meta)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustMake(t *testing.T, c *cluster.Config, hot *packer.HotSet, o Options) *Report {
	t.Helper()
	r, err := Make(c, hot, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		changes   []string
		objective string
		pushes    int
		rows, dim int
		parts     int
	}{
		"links":          {nil, Links, 10, 2000, 1, 64},
		"paper":          {nil, Paper, 10, 2000, 1, 64},
		"few parts":      {nil, Links, 10, 2000, 1, 3},
		"rows of four":   {nil, Links, 10, 700, 4, 64},
		"parents":        {[]string{"slots: 1000}\nserver", "slots: 1000, parent: core}\nserver", "links: [middle], slots: 1000", "links: [middle], slots: 1000, parent: core"}, Links, 50, 2000, 1, 64},
		"more than rows": {nil, Links, 10, 20, 1, 64},
	} {
		o := Defaults()
		o.Objective, o.Pushes, o.Parts = c.objective, c.pushes, c.parts
		config, hot := read(t, c.changes...), hotSet(t, c.rows, c.dim)
		r := mustMake(t, config, hot, o)
		if diff := cmp.Diff(r, mustMake(t, config, hot, o)); diff != "" {
			t.Errorf("%s: another plan the second time:\n%s", name, diff)
		}
		sum, atServer := 0.0, 0.0
		for _, l := range r.Links {
			sum += l.Push + l.Harvest
			if l.B == ServerName || l.A == ServerName {
				atServer += l.Harvest
			}
		}
		if math.Abs(sum-r.Cost.Plan) > 1e-6*sum || r.Cost.Plan < r.Cost.Bound || r.Cost.Bound <= 0 {
			t.Errorf("%s: %v bytes on all links, %+v", name, sum, r.Cost)
		}
		if c.objective == Links && (r.Cost.Plan > r.Cost.OneSwitch || r.Cost.Plan > r.Cost.NoSwitch || r.Cost.Above > 0.02) {
			t.Errorf("%s: %+v", name, r.Cost)
		}
		next, slots, harvests := 0, map[string]int{}, 0.0
		for i, p := range r.Parts {
			if p.Part != i || p.First != next || p.Slots != p.Rows*c.dim || p.Rows < 1 || i < len(r.Parts)-1 && p.Rows != r.Rows {
				t.Errorf("%s: part %+v, want it to begin at %d", name, p, next)
			}
			next += p.Rows
			var workers []uint16
			for _, s := range p.Senders {
				workers = append(workers, s.Workers...)
				if s.Switch != "" && !slices.Contains(p.Switches, s.Switch) {
					t.Errorf("%s: part %d goes to %s, which does not hold it", name, i, s.Switch)
				}
			}
			if slices.Sort(workers); !slices.Equal(workers, []uint16{1, 4, 5, 7}) {
				t.Errorf("%s: part %d comes from workers %v", name, i, workers)
			}
			for _, s := range p.Switches {
				slots[s] += p.Slots
				if name == "parents" && s != "core" && !slices.Contains(p.Switches, "core") {
					t.Errorf("%s: part %d is not at the parent", name, i)
				}
				if name != "parents" || s == "core" {
					harvests += slotBytes * float64(p.Slots)
				}
			}
		}
		if next != c.rows || len(r.Parts) > c.parts {
			t.Errorf("%s: %d parts with %d rows", name, len(r.Parts), next)
		}
		if math.Abs(harvests-atServer) > 1e-6*(1+harvests) || harvests == 0 {
			t.Errorf("%s: harvests of %v bytes at the server, want %v", name, atServer, harvests)
		}
		for _, s := range r.Switches {
			if s.Slots != slots[s.Name] || s.Slots > s.Room || s.Room != 1000 {
				t.Errorf("%s: %+v, its parts have %d slots", name, s, slots[s.Name])
			}
		}
		if len(r.Switches) != 3 {
			t.Errorf("%s: %d switches", name, len(r.Switches))
		}
		var out strings.Builder
		if err := experiment.WriteTables(&out, r); err != nil || !strings.Contains(out.String(), "Bytes times links") {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}

// Today's way has no parents.
func TestOneSwitchHasNoParent(t *testing.T) {
	hot := hotSet(t, 900, 1)
	o := Defaults()
	o.Pushes = 100
	without := mustMake(t, read(t), hot, o).Cost
	with := mustMake(t, read(t, "right], slots: 1000", "right], slots: 1000, parent: left"), hot, o).Cost
	if with.OneSwitch != without.OneSwitch || with.NoSwitch != without.NoSwitch || without.OneSwitch >= without.NoSwitch {
		t.Errorf("%+v with parents, %+v without", with, without)
	}
}

// A part that is pushed less than it is harvested stays cold.
func TestPartsThatAreNotWorthTheirSlots(t *testing.T) {
	hot := hotSet(t, 2000, 1)
	cold := func(o Options) (n int) {
		for _, p := range mustMake(t, read(t, "slots: 1000", "slots: 10000"), hot, o).Parts {
			if len(p.Switches) == 0 {
				n++
			}
		}
		return n
	}
	o := Defaults()
	o.Batch = 1
	few := cold(o)
	if o.Pushes = 10_000; few == 0 || cold(o) != 0 {
		t.Errorf("%d parts are cold with one push, %d with many", few, cold(o))
	}
}

// With the objective Room no part is cold while a switch has room for it, and no switch has a part
// twice as often as others need it while others are cold, though rows are so long that cold frames
// are shorter than hot ones.
func TestRoomIsUsed(t *testing.T) {
	for _, rows := range []int{280, 500} {
		c, hot := read(t), hotSet(t, rows, 10)
		o := Defaults()
		o.Pushes = AutoPushes
		places := func(r *Report) (cold, held int) {
			for _, p := range r.Parts {
				held += len(p.Switches)
				if len(p.Switches) == 0 {
					cold += p.Slots
				}
				for _, from := range p.Senders {
					if from.Switch == "" && len(p.Switches) > 0 {
						t.Errorf("%d rows, %s: workers %v send part %d to the server, and %v hold it", rows, r.Objective,
							from.Workers, p.Part, p.Switches)
					}
				}
			}
			return cold, held
		}
		o.Objective = Room
		filled := mustMake(t, c, hot, o)
		cold, held := places(filled)
		room, part := 0, filled.Parts[0].Slots
		for _, s := range filled.Switches {
			room += s.Room / part * part
		}
		if want := max(0, rows*10-room); cold > want+part {
			t.Errorf("%d rows: %d slots are cold, and there is room for all but %d", rows, cold, want)
		}
		if cold > 0 && held > len(filled.Parts) {
			t.Errorf("%d rows: %d places for %d parts, and %d slots are cold", rows, held, len(filled.Parts), cold)
		}
		o.Objective = Links
		links := mustMake(t, c, hot, o)
		if links.Cost.Plan > filled.Cost.Plan || links.Cost.Bound != filled.Cost.Bound {
			t.Errorf("%d rows: %+v by links, %+v by room", rows, links.Cost, filled.Cost)
		}
		few := 0
		for _, p := range links.Parts {
			if len(p.Switches) == 0 {
				few += p.Slots
			}
		}
		if few <= cold {
			t.Errorf("%d rows: %d slots are cold by links, %d by room: it shows nothing", rows, few, cold)
		}
	}
}

// A push has each row once, and rows that all rows of the sample update in each.
func TestPushed(t *testing.T) {
	m := &maker{hot: hotSet(t, 10, 1), batch: 64}
	for count, want := range map[uint64]float64{0: 0, 10_000: 1, 20_000: 1, 1: 1 - math.Pow(0.9999, 64), 5000: 1 - math.Pow(0.5, 64)} {
		if got := m.pushed(count); !(math.Abs(got-want) <= 1e-12) {
			t.Errorf("count %d: %v, want %v", count, got, want)
		}
	}
	c := read(t)
	o := Defaults()
	if got := mustMake(t, c, m.hot, o).Batch; got != 64 {
		t.Errorf("batch %d, want that of the file", got)
	}
	if o.Batch = 3; mustMake(t, c, m.hot, o).Batch != 3 {
		t.Error("the batch is not that of the options")
	}
}

// Mistakes name a field or an option, and a remedy that works.
func TestMistakes(t *testing.T) {
	o := func(parts int, objective string) Options {
		o := Defaults()
		o.Parts, o.Objective = parts, objective
		return o
	}
	none, err := packer.NewHotSet(1, nil, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	uncounted, err := packer.NewHotSet(1, []uint64{1, 2}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	sampled, err := packer.NewHotSet(1, []uint64{1, 2}, nil, packer.Meta{Rows: 10})
	if err != nil {
		t.Fatal(err)
	}
	plain := read(t)
	plain.Switches = nil
	for name, c := range map[string]struct {
		c    *cluster.Config
		hot  *packer.HotSet
		o    Options
		want string
	}{
		"no switches":        {plain, hotSet(t, 10, 1), Defaults(), "switches: the cluster file lists none: list all switches"},
		"no rows":            {read(t), none, Defaults(), "job.hot_set: hot.libra has no rows, so there is nothing to plan: build it"},
		"no counts":          {read(t), uncounted, Defaults(), "job.hot_set: hot.libra does not say how often its rows are updated: make it"},
		"no counts of rows":  {read(t), sampled, Defaults(), "job.hot_set: hot.libra does not say how often its rows are updated: make it"},
		"beyond the memory":  {read(t), hotSet(t, 2500, 1), o(2, Links), "switches[0].slots: a part has 1250 slots, and switch core has 1000: ask for 3 parts or more (--parts)"},
		"beyond one":         {read(t, "links: [middle], slots: 1000", "links: [middle], slots: 20"), hotSet(t, 2500, 1), Defaults(), "switches[2].slots: a part has 40 slots, and switch left has 20: give it more slots, or let it be plain"},
		"beyond a row":       {read(t), hotSet(t, 4, 1100), Defaults(), "switches[0].slots: a part has 1100 slots, and switch core has 1000: give it more slots"},
		"beyond a job":       {read(t, "slots: 1000", "slots: 200000"), hotSet(t, 140_000, 1), o(2, Links), "--parts 2: a part has 70000 slots, and a job at a switch at most 65536: ask for 3 parts or more (--parts)"},
		"parents, the paper": {read(t, "slots: 1000}\nserver", "slots: 1000, parent: core}\nserver"), hotSet(t, 2000, 1), o(64, Paper), `switches[3].parent: "core", but the paper's algorithm knows no parents: leave it out, or choose the objective links`},
	} {
		_, err := Make(c.c, c.hot, c.o)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	// The remedies.
	mustMake(t, read(t), hotSet(t, 2500, 1), o(3, Links))
	mustMake(t, read(t, "slots: 1000", "slots: 200000"), hotSet(t, 140_000, 1), o(3, Links))
	mustMake(t, read(t, "address: 127.0.0.12, links: [middle], slots: 1000", "plain: true, links: [middle]"), hotSet(t, 2500, 1), Defaults())
}
