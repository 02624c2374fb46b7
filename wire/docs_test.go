// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// TestDocumentation compares the tables and the example of docs/wire.md with
// the package.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	has := func(row string) {
		if !strings.Contains(doc, row) {
			t.Errorf("docs/wire.md has no row that begins %q", row)
		}
	}
	for kind := wire.TypeHot; kind <= wire.TypeTaken; kind++ {
		has(fmt.Sprintf("| %d | %v | ", kind, kind))
	}
	has(fmt.Sprintf("| %d | %v | ", wire.TypeBlock, wire.TypeBlock))
	for bit := range 6 {
		has(fmt.Sprintf("| %v | %d | `0x%02x` | ", wire.Flags(1<<bit), bit, 1<<bit))
	}
	for _, c := range loadGolden(t) {
		if name, ok := strings.CutPrefix(c.Name, "error-"); ok && name != "unassigned" {
			has(fmt.Sprintf("| %d | %s | ", c.Refusal.Code, strings.ReplaceAll(name, "-", " ")))
		}
	}

	// The example describes the bytes in order, except two checksums and the zeroes between the
	// pairs.
	_, example, ok := strings.Cut(doc, "Example, `hot-aligned-1`")
	if !ok {
		t.Fatal("docs/wire.md has no example")
	}
	example, _, _ = strings.Cut(example, "\n## ")
	frame := loadGolden(t)[0].Bytes
	parts := regexp.MustCompile("`((?:[0-9a-f]{2} ?)+)`").FindAllStringSubmatch(example, -1)
	if len(parts) < 20 {
		t.Fatalf("the example has %d byte strings", len(parts))
	}
	at := 0
	for _, p := range parts {
		want, err := hex.DecodeString(strings.ReplaceAll(p[1], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		i := strings.Index(string(frame[at:]), string(want))
		if i < 0 || strings.Trim(string(frame[at:at+i]), "\x00") != "" && i > 2 {
			t.Fatalf("the frame has no % x at %d", want, at)
		}
		at += i + len(want)
	}
}
