// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// The C library has the reason and the remedy of each code of ERROR frames, in the words of package
// wire; Python shows those of the C library.
func TestLibraryNamesEveryRefusal(t *testing.T) {
	text, err := os.ReadFile("c/error.c")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "} refusals[] = {\n")
	table, _, _ = strings.Cut(table, "\n};")
	table = regexp.MustCompile(`"\n\s*"`).ReplaceAllString(table, "") // a text on two lines
	rows := regexp.MustCompile(`\{(\d+), "([^"]*)",\n\t "([^"]*)"\}`).FindAllStringSubmatch(table, -1)
	code := wire.Code(0)
	for _, row := range rows {
		code++
		remedy := code.Remedy()
		if remedy != "" {
			remedy = ": " + remedy
		}
		if row[2] != code.String() || row[3] != remedy {
			t.Errorf("code %d is %q, %q in C, %q, %q in Go", code, row[2], row[3], code, remedy)
		}
	}
	if next := (code + 1).String(); code < wire.CodeCoding || !strings.HasPrefix(next, "error code") {
		t.Errorf("the table ends with code %d, and the next is %q", code, next)
	}
}
