// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// drawn draws one chart and returns the texts in it and the number of its paths.
func drawn(t *testing.T, c Chart) (texts string, shapes int) {
	t.Helper()
	c.Name = "chart"
	paths, err := Write(filepath.Join(t.TempDir(), "new"), []Chart{{Name: "empty"}, c})
	if err != nil || len(paths) != 1 || filepath.Base(paths[0]) != "chart.svg" {
		t.Fatalf("charts %v, %v: want the one with series", paths, err)
	}
	f, err := os.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []string
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return strings.Join(all, "|"), shapes
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if token.Name.Local == "path" {
				shapes++
			}
		case xml.CharData:
			if s := strings.TrimSpace(string(token)); s != "" {
				all = append(all, s)
			}
		}
	}
}

func TestChartNamesItsAxesAndSeries(t *testing.T) {
	points := []Point{{X: 1, Y: 2}, {X: 10, Y: 20}}
	for name, c := range map[string]Chart{
		"lines": {Series: []Series{{Name: "ours", Points: points}, {Name: "paper", Kind: Dots, Colour: Paper, Variant: 1, Points: points}}},
		"log": {
			X: Axis{Log: true, Min: 1, Max: 40, Ticks: Ticks("<%d>", 1, 10)}, Y: Axis{Log: true},
			Series: []Series{{Name: "ours", Points: points}, {Name: "paper", Points: points}},
		},
		"bars": {X: Axis{Names: []string{"190", "1414"}}, Series: []Series{
			{Name: "ours", Kind: Bars, Width: 0.3, Points: []Point{{X: 0, Y: 2, Low: 1, High: 3}, {X: 1, Y: 3, Low: 2, High: 4}}},
			{Name: "paper", Kind: Bars, Width: 0.3, Colour: 1, Points: []Point{{X: 0.3, Y: 2}}},
			{Kind: Bars, Width: 0.3, Colour: 1, Variant: 1, Points: []Point{{X: 0.3, Y: 5, Foot: 2}}},
		}},
	} {
		c.Title, c.X.Label, c.Y.Label = "a title", "across", "upwards"
		texts, _ := drawn(t, c)
		want := append([]string{"a title", "across", "upwards", "ours", "paper"}, c.X.Names...)
		if c.X.Ticks != nil {
			want = append(want, "<1>", "<10>")
		}
		for _, w := range want {
			if !strings.Contains("|"+texts+"|", "|"+w+"|") {
				t.Errorf("%s: %q is not among %q", name, w, texts)
			}
		}
	}
}

// TestChartDrawsEveryPart adds one part at a time.
func TestChartDrawsEveryPart(t *testing.T) {
	point := Point{X: 1, Y: 2}
	c := Chart{ // with constant axes
		X: Axis{Min: 0.5, Max: 1.5}, Y: Axis{Min: 0.5, Max: 3},
		Series: []Series{{Kind: Dots, Points: []Point{point}}},
	}
	_, before := drawn(t, c)
	grow := func(what string, change func()) {
		t.Helper()
		change()
		_, after := drawn(t, c)
		if after <= before {
			t.Errorf("%s: %d shapes after %d", what, after, before)
		}
		before = after
	}
	s := &c.Series[0]
	grow("a second dot", func() { s.Points = []Point{point, {X: 1.1, Y: 2}} })
	grow("lines", func() { s.Kind = Lines })
	grow("an error bar", func() { s.Points[0].Low, s.Points[0].High = 1.5, 2.5 })
	grow("a name", func() { s.Name = "name" })
	grow("bars", func() {
		c.Series = append(c.Series, Series{Kind: Bars, Width: 0.1, Points: []Point{{X: 1, Y: 2}, {X: 1.2, Y: 1}}})
	})
}

func TestBarsBesideEachOtherDoNotOverlap(t *testing.T) {
	for n := 1; n < 9; n++ {
		right := -0.5
		for i := range n {
			place, width := beside(i, n)
			if place-width/2 < right {
				t.Errorf("bar %d of %d begins at %v, the one before ends at %v", i, n, place-width/2, right)
			}
			right = place + width/2
		}
		if right > 0.5 {
			t.Errorf("%d bars end at %v, in the next group", n, right)
		}
	}
}

func TestPartsOfABarLieOnTopOfEachOther(t *testing.T) {
	var c Chart
	type bar struct {
		group, name string
		low, high   float64
	}
	AddBars(&c, []bar{{"a", "x", 1, 2}, {"a", "y", 3, 4}, {"b", "y", 5, 0}},
		func(b bar) string { return b.group }, func(b bar) string { return b.name },
		func(b bar) []Part {
			return []Part{{Name: "lower", Height: b.low}, {Name: "upper", Colour: 1, Height: b.high}}
		})
	left, width := beside(0, 2)
	want := Chart{X: Axis{Names: []string{"a", "b"}}, Series: []Series{
		{Name: "lower", Kind: Bars, Width: width, Points: []Point{{X: left, Y: 1}, {X: -left, Y: 3}, {X: 1 - left, Y: 5}}},
		{Name: "upper", Kind: Bars, Width: width, Colour: 1, Points: []Point{
			{X: left, Foot: 1, Y: 3}, {X: -left, Foot: 3, Y: 7}, {X: 1 - left, Foot: 5, Y: 5},
		}},
	}}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCurveForEachColourAndVariant(t *testing.T) {
	type sample struct {
		colour, variant string
		x, y            float64
	}
	var c Chart
	AddCurves(&c, []sample{{"b", "dashed", 1, 2}, {"a", "solid", 3, 4}, {"b", "dashed", 5, 6}},
		func(s sample) string { return s.colour }, func(s sample) string { return s.variant }, func(s sample) (x, y float64) { return s.x, s.y })
	want := []Series{
		{Name: "b, dashed", Points: []Point{{X: 1, Y: 2}, {X: 5, Y: 6}}}, {Name: "b, solid", Variant: 1},
		{Name: "a, dashed", Colour: 1}, {Name: "a, solid", Colour: 1, Variant: 1, Points: []Point{{X: 3, Y: 4}}},
	}
	if diff := cmp.Diff(want, c.Series); diff != "" {
		t.Error(diff)
	}
}

func TestChartThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(file, nil); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v does not name %s", err, file)
	}
	good := Series{Points: []Point{{X: 1, Y: 1}}}
	if _, err := Write(t.TempDir(), []Chart{{Name: "no/such/folder", Series: []Series{good}}}); err == nil {
		t.Error("a chart in a folder that is not there is written")
	}
}

// A viewer may have no font: names are outlines, beside the marks of the legend in each corner, and
// end inside the picture.
func TestNamesAreOutlines(t *testing.T) {
	at := regexp.MustCompile(`translate\(([\d.]+), [-\d.]+\) scale\(([\d.]+)\)"><title>([^<]*)</title>(?:<use xlink:href="#g\d+" x="([\d.]+)"/>)+`)
	for _, corner := range []Corner{TopLeft, TopRight, BottomLeft, BottomRight} {
		name := "a name < of some length"
		points := []Point{{X: 1, Y: 2}, {X: 10, Y: 20}}
		paths, err := Write(t.TempDir(), []Chart{{Name: "chart", Legend: corner, X: Axis{Label: "across"}, Series: []Series{{Name: name, Points: points}}}})
		if err != nil {
			t.Fatal(err)
		}
		svg, err := os.ReadFile(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(svg, []byte("<text")) || bytes.Contains(svg, []byte("font")) {
			t.Errorf("corner %d: a text needs a font", corner)
		}
		for _, used := range regexp.MustCompile(`xlink:href="#(g\d+)"`).FindAllSubmatch(svg, -1) {
			if n := bytes.Count(svg, fmt.Appendf(nil, "<path id=%q d=\"", used[1])); n != 1 {
				t.Errorf("corner %d: glyph %s is drawn %d times", corner, used[1], n)
			}
		}
		found := false
		for _, text := range at.FindAllSubmatch(svg, -1) {
			if html.UnescapeString(string(text[3])) != name {
				continue
			}
			found = true
			number := func(i int) float64 {
				x, err := strconv.ParseFloat(string(text[i]), 64)
				if err != nil {
					t.Fatal(err)
				}
				return x
			}
			begin, end := number(1), number(1)+number(2)*number(4)
			if half := float64(chartWidth) / 2; (corner == TopRight || corner == BottomRight) != (begin > half) || end <= begin || end > float64(chartWidth) {
				t.Errorf("corner %d: the name is from %v to %v of %v", corner, begin, end, chartWidth)
			}
		}
		if !found {
			t.Errorf("corner %d: no name", corner)
		}
	}
}

// A long title takes more lines, and each begins and ends inside the picture. Names of logs are
// file names, in any script: a missing letter must not lose a picture after minutes of measuring.
func TestCharactersThatTheFontLacks(t *testing.T) {
	name := "数据 & <x> \"q\" \xff😀\x01"
	texts, _ := drawn(t, Chart{Title: name, Series: []Series{{Name: name, Points: []Point{{X: 1, Y: 1}}}}})
	if want := "数据 & <x> \"q\" \ufffd😀\ufffd"; strings.Count(texts, want) != 2 {
		t.Errorf("texts %q, want %q twice", texts, want)
	}
}

// Training that diverges has no number for an epoch: the other points are drawn.
func TestPointsThatAreNoNumbers(t *testing.T) {
	good := Point{X: 1, Y: 2}
	for _, kind := range []Kind{Lines, Dots, Bars} {
		series := func(points ...Point) Chart {
			return Chart{X: Axis{Min: 0, Max: 3}, Y: Axis{Max: 3}, Series: []Series{{Kind: kind, Width: 0.1, Points: points}}}
		}
		_, want := drawn(t, series(good))
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for _, p := range []Point{{X: 2, Y: bad}, {X: bad, Y: 1}, {X: 2, Y: 1, Low: bad, High: bad}} {
				if _, shapes := drawn(t, series(good, p)); shapes != want {
					t.Errorf("%v, %+v: %d shapes, %d without it", kind, p, shapes, want)
				}
				drawn(t, series(p))
			}
		}
	}
}

func TestLongTitleIsFolded(t *testing.T) {
	title := strings.TrimSpace(strings.Repeat("a word and another ", 12))
	texts, _ := drawn(t, Chart{Title: title, Series: []Series{{Points: []Point{{X: 1, Y: 2}}}}})
	var lines []string
	for line := range strings.SplitSeq(texts, "|") {
		if strings.Contains(line, "word") {
			lines = append(lines, line)
			if len(line) > 110 { // of 12 points, each about 6 wide
				t.Errorf("%d characters in one line", len(line))
			}
		}
	}
	if strings.Join(lines, " ") != title || len(lines) < 2 {
		t.Errorf("lines %q", lines)
	}
}

func TestTicksAreNumbersAsPeopleWriteThem(t *testing.T) {
	for _, most := range []float64{2600, 130000, 1.7} {
		var labels []string
		for _, tick := range (plainTicks{}).Ticks(0, most) {
			labels = append(labels, tick.Label)
		}
		if all := strings.Join(labels, "|"); strings.Contains(all, ".00") || !strings.HasPrefix(all, "0|") || strings.Contains(all, "e+") {
			t.Errorf("up to %v: %s", most, all)
		}
	}
}
