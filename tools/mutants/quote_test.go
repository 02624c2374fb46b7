// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestOccurrences(t *testing.T) {
	for _, c := range []struct {
		code, quote string
		want        int
	}{
		{"a := b /* c */ + d // e", "a:=b+d", 1},
		{"a := b // + d", "b + d", 0},
		{"ab := b", "b", 1},
		{"f(a,\n\tb,\n)", "f(a, b)", 1},
		{"if a {\n\tb()\n\tc()\n}", "if a { b(); c() }", 1},
		{`s := "a  // b"`, `"a // b"`, 0},
		{"if a { if b { c() }; d[e] }; f()", "if a { … } f()", 1},
		{"if a { if b { c() } }", "{ … }", 2},
		{"if a { b() }", "if a { … } else", 0},
		{"f(a, b)", "f(a, …", 1},
		{"a", "", 0},
	} {
		if found := occurrences(splitGo(c.code), splitGo(c.quote)); len(found) != c.want {
			t.Errorf("%q occurs %d times in %q, want %d", c.quote, len(found), c.code, c.want)
		}
	}
	const program = "if (c == '\\0') /* none */\n\treturn 0x1ULL;\nreturn 1;"
	if found := occurrences(split(program), split("'\\0')\nreturn 0x1ULL; return")); len(found) != 1 {
		t.Errorf("code in C occurs %d times", len(found))
	}
}

// What is not a comment stays where it is.
func TestWithoutComments(t *testing.T) {
	const code = "a := `//` // b\n\tc /* d\n\te */ := '/'"
	const want = "a := `//`     \n\tc     \n\t     := '/'"
	if got := withoutComments(code); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
