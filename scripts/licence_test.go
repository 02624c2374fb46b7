// SPDX-License-Identifier: Apache-2.0

package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The licences of hand-written sources. Programs that the kernel runs tell it that they are
// under the GPL too, in their section "license", and so are the headers that they include.
const (
	apache = "Apache-2.0"
	both   = "Apache-2.0 OR GPL-2.0-only"
)

var (
	identifier = regexp.MustCompile(`(?m)^(?://|#|--|/\*) SPDX-License-Identifier: (.*?)(?: \*/)?$`)
	generated  = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	gpl        = regexp.MustCompile(`SEC\("license"\) = "GPL"`)
)

// TestSourcesNameTheirLicence: each hand-written source has an SPDX identifier in its first
// lines.
func TestSourcesNameTheirLicence(t *testing.T) {
	out, err := exec.Command("git", "-C", "..", "ls-files").Output()
	if err != nil {
		t.Skipf("not a clone: %v", err)
	}
	found := map[string]int{}
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSuffix(path, "\n")
		kind := filepath.Ext(path)
		if path == ".ci/run" {
			kind = ".sh"
		}
		switch kind {
		case ".go", ".c", ".h", ".py", ".sh", ".lua", ".pml", ".p4":
		default:
			continue
		}
		if strings.Contains(path, "testdata/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", path))
		if os.IsNotExist(err) {
			continue // removed, and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		head := text[:min(len(text), 2000)]
		if generated.Match(head) {
			continue
		}
		found[kind]++
		want := apache
		if strings.HasPrefix(path, "bpf/") && (kind == ".c" || kind == ".h") || gpl.Match(text) && kind == ".c" {
			want = both
		}
		m := identifier.FindSubmatch(head)
		switch {
		case m == nil:
			t.Errorf("%s does not begin with // SPDX-License-Identifier: %s", path, want)
		case string(m[1]) != want:
			t.Errorf("%s names the licence %s, not %s", path, m[1], want)
		}
	}
	for _, kind := range []string{".go", ".c", ".h", ".py", ".sh", ".lua", ".pml", ".p4"} {
		if found[kind] == 0 {
			t.Errorf("no file *%s was looked at", kind)
		}
	}
}
