// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"html"
	"regexp"
	"slices"
	"strconv"

	"golang.org/x/image/font"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
	plotfont "gonum.org/v1/plot/font"
)

// em is the size of glyphs; texts scale it.
const em = 100

// texts match the output of vgsvg: place, font size and, escaped, the characters.
var texts = regexp.MustCompile(`<text x="([^"]+)" y="([^"]+)" transform="scale\(1, -1\)"\s+style="[^"]*font-size:([0-9.]+)px[^"]*">([^<]*)</text>`)

// outline replaces the texts of a picture by outlines of the font that they were measured in, so
// that the picture does not depend on installed fonts. Each text stays as the title of its
// outlines, for searches and screen readers.
func outline(svg []byte) ([]byte, error) {
	face := plotfont.DefaultCache.Lookup(plotfont.Font{Typeface: "Liberation", Variant: "Sans"}, em)
	o := outliner{font: face.Face, drawn: map[sfnt.GlyphIndex]bool{}}
	var err error
	svg = texts.ReplaceAllFunc(svg, func(element []byte) []byte {
		m := texts.FindSubmatch(element)
		line := html.UnescapeString(string(m[4]))
		size, e := strconv.ParseFloat(string(m[3]), 64)
		var glyphs []byte
		if e == nil {
			glyphs, e = o.placeGlyphs(line)
		}
		if e != nil {
			err = fmt.Errorf("text %q: %w", line, e)
		}
		var title bytes.Buffer
		// without bytes that XML does not allow, which file names may have; a buffer accepts all
		_ = xml.EscapeText(&title, []byte(line))
		return fmt.Appendf(nil, "<g transform=\"scale(1, -1) translate(%s, %s) scale(%.4g)\"><title>%s</title>%s</g>", m[1],
			m[2], size/em, &title, glyphs)
	})
	// The glyphs follow the opening tag, before their uses.
	begin := bytes.Index(svg, []byte("<g "))
	if begin < 0 || err != nil {
		return svg, err
	}
	return slices.Concat(svg[:begin], []byte("<defs>\n"), o.glyphs, []byte("</defs>\n"), svg[begin:]), nil
}

// outliner draws each glyph once.
type outliner struct {
	font   *sfnt.Font
	buffer sfnt.Buffer
	drawn  map[sfnt.GlyphIndex]bool
	glyphs []byte
}

// placeGlyphs returns the placement of a text's glyphs. A character that the font lacks is its
// glyph 0, a box.
func (o *outliner) placeGlyphs(text string) (uses []byte, err error) {
	var x fixed.Int26_6
	for _, r := range text {
		glyph, err := o.font.GlyphIndex(&o.buffer, r)
		if err != nil {
			return nil, err
		}
		if !o.drawn[glyph] {
			if err := o.draw(glyph); err != nil {
				return nil, err
			}
			o.drawn[glyph] = true
		}
		uses = fmt.Appendf(uses, `<use xlink:href="#g%d" x="%s"/>`, glyph, decimal(x))
		advance, err := o.font.GlyphAdvance(&o.buffer, glyph, fixed.I(em), font.HintingNone)
		if err != nil {
			return nil, err
		}
		x += advance
	}
	return uses, nil
}

// draw adds the outline of a glyph.
func (o *outliner) draw(glyph sfnt.GlyphIndex) error {
	segments, err := o.font.LoadGlyph(&o.buffer, glyph, fixed.I(em), nil)
	if err != nil {
		return err
	}
	o.glyphs = fmt.Appendf(o.glyphs, `<path id="g%d" d="`, glyph)
	for _, s := range segments {
		command, points := "M", 1
		switch s.Op {
		case sfnt.SegmentOpLineTo:
			command = "L"
		case sfnt.SegmentOpQuadTo:
			command, points = "Q", 2
		case sfnt.SegmentOpCubeTo:
			command, points = "C", 3
		}
		for i, p := range s.Args[:points] {
			separator := " "
			if i == 0 {
				separator = command
			}
			o.glyphs = fmt.Appendf(o.glyphs, "%s%s %s", separator, decimal(p.X), decimal(p.Y))
		}
	}
	o.glyphs = append(o.glyphs, "\"/>\n"...)
	return nil
}

func decimal(x fixed.Int26_6) string { return strconv.FormatFloat(float64(x)/64, 'f', 1, 64) }
