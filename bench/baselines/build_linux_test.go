// SPDX-License-Identifier: Apache-2.0

package baselines

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// program returns a program in C.
func program(source string) *Program {
	return &Program{name: "test", source: source, compiler: []string{"cc", "-x", "c"}, libraries: []string{"-lm"}}
}

func TestBuiltProgramRuns(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip(err)
	}
	e, err := program("#include <stdio.h>\nint main(int c, char **v) { return puts(v[1]) < 0; }").Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	argv := e.Command("hello")
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("%q, %v", out, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestBuildTellsWhatIsWrong(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip(err)
	}
	if _, err := program("int main() { return missing; }").Build(t.Context()); !errors.Is(err, ErrBuild) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a broken program: %v", err)
	}
	p := program("")
	p.compiler = []string{"no-such-compiler"}
	if _, err := p.Build(t.Context()); !errors.Is(err, ErrBuild) || !strings.Contains(err.Error(), "no-such-compiler") {
		t.Errorf("no compiler: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := program("int main() {}").Build(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrBuild) {
		t.Errorf("interrupted: %v", err)
	}
}
