// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"text/scanner"
)

// anything in a quote stands for any code, up to where the bracket around it closes.
const anything = "…"

// A lexeme is a word, a literal or another character of code. Comments are none.
type lexeme struct {
	text       string
	start, end int // offsets in the code
}

// split splits Go or C into lexemes. The lists of mutants quote code, and quotes are compared with
// the code lexeme by lexeme, so that neither comments nor layout matter. The scanner is one for Go;
// C has the same comments and words, and the rest is split in the same way in the code and in a
// quote.
func split(code string) []lexeme {
	var s scanner.Scanner
	s.Init(strings.NewReader(code))
	s.Mode = scanner.GoTokens
	s.Error = func(*scanner.Scanner, string) {} // '\0' of C is a literal, too
	var list []lexeme
	for s.Scan() != scanner.EOF {
		list = append(list, lexeme{s.TokenText(), s.Offset, s.Offset + len(s.TokenText())})
	}
	return list
}

// splitGo leaves out what depends on the layout of Go: semicolons, which the end of a line can
// replace, and commas before a closing bracket or at the end of a quote.
func splitGo(code string) []lexeme {
	all := split(code)
	kept := all[:0]
	for i, t := range all {
		last := i+1 == len(all) || closes(all[i+1].text)
		if t.text != ";" && (t.text != "," || !last) {
			kept = append(kept, t)
		}
	}
	return kept
}

func opens(text string) bool  { return text == "(" || text == "[" || text == "{" }
func closes(text string) bool { return text == ")" || text == "]" || text == "}" }

// A span is a part of a list of lexemes, the last one excluded.
type span struct{ from, to int }

// occurrences finds the places of a quote in code.
func occurrences(code, quote []lexeme) (found []span) {
	if len(quote) == 0 {
		return nil
	}
	for from := range code {
		if to, ok := match(code, quote, from); ok {
			found = append(found, span{from, to})
		}
	}
	return found
}

// match compares a quote with the code at one place, and returns where the quoted code ends.
func match(code, quote []lexeme, at int) (end int, ok bool) {
	for _, q := range quote {
		if q.text == anything {
			for depth := 0; at < len(code) && (depth > 0 || !closes(code[at].text)); at++ {
				switch {
				case opens(code[at].text):
					depth++
				case closes(code[at].text):
					depth--
				}
			}
			continue
		}
		if at == len(code) || code[at].text != q.text {
			return 0, false
		}
		at++
	}
	return at, true
}

// join makes one text of lexemes, to compare them.
func join(list []lexeme) string {
	var text strings.Builder
	for _, t := range list {
		text.WriteString(t.text)
		text.WriteByte('\n')
	}
	return text.String()
}

// withoutComments replaces comments by spaces, so that offsets and lines stay the same.
func withoutComments(code string) string {
	blank := []byte(code)
	end := 0
	space := func(to int) {
		for i := end; i < to; i++ {
			if blank[i] != '\n' && blank[i] != '\t' {
				blank[i] = ' '
			}
		}
	}
	for _, t := range split(code) {
		space(t.start)
		end = t.end
	}
	space(len(code))
	return string(blank)
}
