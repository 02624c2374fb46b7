// SPDX-License-Identifier: Apache-2.0

package program

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var record = flag.Bool("record", false, "note that the compiled files belong to the present sources")

const sumsFile = "compiled/SHA256SUMS" // sha256sum -c reads it, in this folder

// The compiled files belong to the sources: a change of one without the other is found here,
// without a compiler.
func TestCompiledBelongsToSources(t *testing.T) {
	var files []string
	for _, pattern := range []string{"[^l]*.p4", "libra_v1model.p4", "v1model/*.p4", "compiled/*.json", "compiled/*.txtpb"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no %s (%v)", pattern, err)
		}
		files = append(files, found...)
	}
	var sums strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.Sum256(text)
		fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(h[:]), name)
	}
	if *record {
		if err := os.WriteFile(sumsFile, []byte(sums.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(sumsFile)
	if err != nil {
		t.Fatal(err)
	}
	if sums.String() != string(want) {
		t.Errorf("the program has changed since it was compiled, or its compiled files have: run `make p4`, which needs p4c\nhashes are\n%s", sums.String())
	}
}

// Swapped files are reported by name, with their expected contents.
func TestSwappedFiles(t *testing.T) {
	_, err := Read(deviceFile, infoFile)
	if err == nil || !strings.Contains(err.Error(), deviceFile) || !strings.Contains(err.Error(), "--p4runtime-files") {
		t.Error(err)
	}
}
