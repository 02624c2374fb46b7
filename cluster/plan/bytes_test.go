// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/wire"
)

// The links of file, counted by hand: from workers 1, 4, 5 and 7 to the server, and to switch core.
var (
	toServer = []int{4, 4, 3, 3}
	toCore   = []int{3, 3, 2, 2}
)

func sumOf(links []int) (sum float64) {
	for _, n := range links {
		sum += float64(n)
	}
	return sum
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(math.Abs(a)+math.Abs(b)) }

// The bytes of a report are what pushes and harvests have in frames, on the links of the file.
func TestBytes(t *testing.T) {
	for name, c := range map[string]struct {
		changes                []string
		rows, dim, parts, room int
		batch, stripes         int
		pushes                 int
	}{
		"as it is":             {nil, 2000, 1, 50, 1000, 64, 0, 10},
		"the last one is less": {nil, 1990, 1, 50, 1000, 64, 0, 1},
		"almost one more":      {[]string{"right], slots: 1000", "right], slots: 1039"}, 2000, 1, 50, 1039, 64, 0, 10},
		"one more":             {[]string{"right], slots: 1000", "right], slots: 1040"}, 2000, 1, 50, 1040, 64, 0, 10},
		"more than a page":     {[]string{"slots: 1000", "slots: 200000"}, 140_000, 1, 200, packer.PageSlots, 64, 0, 1},
		"rows of five":         {nil, 399, 5, 40, 1000, 64, 0, 3},
		"accumulates":          {[]string{"sync: true", "accumulate: 4"}, 2000, 1, 50, 1000, 256, 0, 10},
		"rows of a frame":      {nil, 20, 500, 50, 1000, 64, 0, 1},
		"a stripe":             {nil, 2000, 1, 50, 1000, 64, 1, 10},
		"a large MTU":          {nil, 2000, 1, 50, 1000, 64, wire.MaxStripes, 10},
	} {
		o := Defaults()
		o.Pushes, o.Parts = c.pushes, min(c.parts, MaxParts)
		config, hot := read(t, c.changes...), hotSet(t, c.rows, c.dim)
		if config.Switch.Stripes = wire.DefaultStripes; c.stripes != 0 {
			config.Switch.Stripes = c.stripes
		}
		r := mustMake(t, config, hot, o)
		if r.Batch != c.batch || r.Pushes != c.pushes || r.Objective != Links || r.Rows != share.PartRows(c.rows, o.Parts) {
			t.Errorf("%s: batch %d, pushes %d, objective %s, %d rows in a part", name, r.Batch, r.Pushes, r.Objective, r.Rows)
		}
		// A pair's bytes in full HOT and COLD_AT frames.
		hotLen := wire.HeaderLen + config.Switch.Stripes*wire.StripeLen
		pair := float64(wire.EnvelopeLen+hotLen) / float64(config.Switch.Stripes*wire.Lanes)
		full := max(1, wire.ColdAtCap(max(hotLen, wire.DefaultPayload), c.dim)) // a larger row is in several
		direct := float64(wire.EnvelopeLen+wire.ColdAtLen(full, c.dim)) / float64(full*c.dim)

		var none, one float64
		room := c.room
		pushed := map[string]float64{}
		held := map[string]float64{}
		for i, p := range r.Parts {
			var pairs, updates float64
			for rank := p.First; rank < p.First+p.Rows; rank++ {
				n := hot.Count(uint32(rank))
				pairs += float64(c.pushes*c.dim) * (1 - math.Pow(1-float64(n)/10_000, float64(c.batch)))
				updates += float64(n)
			}
			if all := float64(hot.Meta().Updates); !near(p.Share, updates/all) {
				t.Errorf("%s: part %d has a share of %v, want %v", name, i, p.Share, updates/all)
			}
			none += pairs * direct * sumOf(toServer)
			if room -= p.Slots; room >= 0 {
				one += pairs*pair*sumOf(toCore) + slotBytes*float64(p.Slots)
			} else {
				one += pairs * direct * sumOf(toServer)
			}
			for _, s := range p.Senders {
				pushed[s.Switch] += pairs * pair * float64(len(s.Workers))
			}
			for _, s := range p.Switches {
				held[s] += float64(p.Slots)
			}
		}
		if !near(r.Cost.NoSwitch, none) || !near(r.Cost.OneSwitch, one) {
			t.Errorf("%s: %+v, want %v with one switch and %v with none", name, r.Cost, one, none)
		}
		if !near(r.Cost.Plan, r.Cost.Bound*(1+r.Cost.Above)) {
			t.Errorf("%s: %+v", name, r.Cost)
		}
		for _, s := range r.Switches {
			if !near(s.Pushed, pushed[s.Name]) || !near(s.Harvested, slotBytes*held[s.Name]) ||
				!near(s.Occupancy, held[s.Name]/float64(s.Room)) {
				t.Errorf("%s: %+v, want %v bytes pushed, and %v slots", name, s, pushed[s.Name], held[s.Name])
			}
			holds := 0
			for _, p := range r.Parts {
				if slices.Contains(p.Switches, s.Name) {
					holds++
				}
			}
			if s.Parts != holds {
				t.Errorf("%s: %s has %d parts, want %d", name, s.Name, s.Parts, holds)
			}
		}
	}
}

// A part fills a switch to the last slot, and the remedy is as many parts as there may be.
func TestSizesAtTheirBounds(t *testing.T) {
	o := Defaults()
	small := func(slots int) []string {
		return []string{"links: [middle], slots: 1000", fmt.Sprintf("links: [middle], slots: %d", slots)}
	}
	rows := 20 * MaxParts
	mustMake(t, read(t, small(20)...), hotSet(t, rows, 1), o)
	o.Parts = 2
	mustMake(t, read(t, small(rows/2)...), hotSet(t, rows, 1), o)
	for _, c := range []struct {
		rows   int
		remedy string
	}{
		{rows, fmt.Sprintf("ask for %d parts or more (--parts)", MaxParts)},
		{rows + 1, "give it more slots, or let it be plain"},
	} {
		if _, err := Make(read(t, small(20)...), hotSet(t, c.rows, 1), o); err == nil || !strings.HasSuffix(err.Error(), c.remedy) {
			t.Errorf("%d rows: %v, want the remedy %q", c.rows, err, c.remedy)
		}
	}
	large := read(t, "slots: 1000", "slots: 200000")
	mustMake(t, large, hotSet(t, 2*packer.PageSlots, 1), o)
	if _, err := Make(large, hotSet(t, 2*packer.PageSlots+1, 1), o); err == nil {
		t.Error("a part has more slots than a job")
	}
}

// A line of the table has neighbouring parts that are alike in switches and senders, and what they
// have together.
func TestLinesOfParts(t *testing.T) {
	to := func(name string, workers ...uint16) Sender { return Sender{Switch: name, Workers: workers} }
	r := &Report{Pushes: 1}
	for i, p := range []Part{
		{Share: 0.5, Switches: []string{"a"}, Senders: []Sender{to("a", 1, 2)}},
		{Share: 0.125, Rows: 7, Switches: []string{"a"}, Senders: []Sender{to("a", 1, 2)}},
		{Share: 0.0625, Switches: []string{"a", "b"}, Senders: []Sender{to("a", 1, 2)}},
		{Share: 0.03, Switches: []string{"a", "b"}, Senders: []Sender{to("a", 1), to("b", 2)}},
		{Share: 0.02, Switches: []string{"a"}, Senders: []Sender{to("a", 1), to("", 2)}},
		{Share: 0.01, Rows: 3, Senders: []Sender{to("", 1, 2)}},
	} {
		p.Part, p.First = i, 10*i
		if p.Rows == 0 {
			p.Rows = 10
		}
		r.Parts = append(r.Parts, p)
	}
	var out strings.Builder
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	var got []string
	_, table, _ := strings.Cut(out.String(), "Parts")
	table, _, _ = strings.Cut(table, "Links")
	for line := range strings.Lines(table) {
		if strings.Contains(line, "%") {
			got = append(got, strings.Join(strings.Fields(strings.Trim(strings.ReplaceAll(line, "|", " "), " \n")), " "))
		}
	}
	want := []string{
		"0–1 0–16 62.50 % a a: 1,2",
		"2 20–29 6.25 % a, b a: 1,2",
		"3 30–39 3.00 % a, b a: 1; b: 2",
		"4 40–49 2.00 % a a: 1; cold: 2",
		"5 50–52 1.00 % cold: 1,2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("lines\n%s\nwant\n%s\nin\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), out.String())
	}
	if !strings.Contains(out.String(), "after 1 push of each worker") {
		t.Errorf("one push is not one:\n%s", out.String())
	}
	r.Pushes = 2
	out.Reset()
	if err := experiment.WriteTables(&out, r); err != nil || !strings.Contains(out.String(), "after 2 pushes of each worker") {
		t.Errorf("%v: two pushes are not two:\n%s", err, out.String())
	}
}

// The links of a report are named from the lower to the upper node as docs/scheduling.md orders
// them, and its switches have their parents, by the names of the file.
func TestParentsAndLinks(t *testing.T) {
	o := Defaults()
	o.Pushes, o.Parts = 100, 20
	// right sends its harvests to left, on the links right-core, core-middle and middle-left; left
	// sends all of them to the server.
	r := mustMake(t, read(t, "right], slots: 1000", "right], slots: 40", "127.0.0.13, slots: 1000", "127.0.0.13, slots: 1000, parent: left"),
		hotSet(t, 800, 1), o)
	slots := map[string]float64{}
	for _, s := range r.Switches {
		slots[s.Name] = float64(s.Slots)
		if want := map[string]string{"right": "left"}[s.Name]; s.Parent != want {
			t.Errorf("the parent of %s is %q, want %q", s.Name, s.Parent, want)
		}
	}
	if slots["left"] == 0 || slots["right"] == 0 {
		t.Fatalf("nothing is planned: %+v", r.Switches)
	}
	at := slotBytes * slots["left"]
	on := slotBytes * slots["right"]
	want := map[string]float64{
		"core–" + ServerName: at + slotBytes*slots["core"], "core–middle": at + on, "middle–left": at + on, "core–right": on,
		"left–worker 1": 0, "left–worker 4": 0, "right–worker 5": 0, "middle–worker 7": 0,
	}
	for _, l := range r.Links {
		if bytes, ok := want[l.A+"–"+l.B]; !ok || !near(l.Harvest, bytes) {
			t.Errorf("%+v, want harvests of %v bytes among %v", l, bytes, want)
		}
		delete(want, l.A+"–"+l.B)
	}
	if len(want) > 0 {
		t.Errorf("no links %v", want)
	}
}

// With the objective Paper a report is of the paper's plan, whose parts each worker sends to one of
// its switches, though another costs less.
func TestPapersPlan(t *testing.T) {
	o := Defaults()
	o.Pushes = 10
	c, hot := read(t), hotSet(t, 2000, 1)
	links := mustMake(t, c, hot, o)
	o.Objective = Paper
	costs := map[float64]bool{}
	for o.Seed = range uint64(4) {
		r := mustMake(t, c, hot, o)
		if r.Objective != Paper || r.Cost.Bound != links.Cost.Bound || r.Cost.Plan < r.Cost.Bound {
			t.Errorf("seed %d: %+v, by links %+v", o.Seed, r.Cost, links.Cost)
		}
		costs[r.Cost.Plan] = true
	}
	if len(costs) == 1 && costs[links.Cost.Plan] {
		t.Error("the plans are those of the objective links")
	}
}

// People read the same figures as programs.
func TestPrintedFigures(t *testing.T) {
	r := &Report{
		Pushes:   3,
		Switches: []Switch{{Name: "a", Address: "10.0.0.1", Parent: "b", Parts: 2, Slots: 1500, Room: 6000, Occupancy: 0.25, Pushed: 7e3, Harvested: 8e6}},
		Links:    []Link{{A: "a", B: "b", Push: 5e3, Harvest: 4e6}},
		Cost:     Cost{Plan: 1e3, Bound: 2e3, Above: 0.125, OneSwitch: 3e3, NoSwitch: 9e3},
	}
	var out strings.Builder
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(out.String(), "|", " ")), " ")
	for _, want := range []string{
		"a 10.0.0.1 b 2 1,500 6,000 25.0 % 7.0 kB 8.0 MB", "a b 5.0 kB 4.0 MB", "this plan 1.0 kB",
		"(this one is 12.50 % above) 2.0 kB", "as far as there is room 3.0 kB", "all rows cold 9.0 kB",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
