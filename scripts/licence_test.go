// SPDX-License-Identifier: Apache-2.0

package scripts

import (
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
	kinds := []string{".go", ".c", ".h", ".py", ".sh", ".lua", ".pml", ".p4", ".ci/run"}
	for path, text := range handWritten(t, kinds...) {
		if strings.Contains(path, "testdata/") {
			continue
		}
		kind := filepath.Ext(path)
		want := apache
		if strings.HasPrefix(path, "bpf/") && (kind == ".c" || kind == ".h") || gpl.Match(text) && kind == ".c" {
			want = both
		}
		m := identifier.FindSubmatch(text[:min(len(text), headBytes)])
		switch {
		case m == nil:
			t.Errorf("%s does not begin with // SPDX-License-Identifier: %s", path, want)
		case string(m[1]) != want:
			t.Errorf("%s names the licence %s, not %s", path, m[1], want)
		}
	}
}
