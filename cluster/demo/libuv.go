// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// withoutLibuv is the variable that tells PyTorch to open its store without libuv.
const withoutLibuv = "USE_LIBUV"

// libuvLimit is the time to answer. PyTorch's library has hundreds of megabytes, of which a busy
// machine has taken 10 s to read; without an answer Debian's PyTorch would fail.
const libuvLimit = time.Minute

// asksForLibuv prints "no" if Python's PyTorch opens its store with libuv and was built without
// it, as Debian's is. PyTorch's library is read and not loaded, which would take seconds.
const asksForLibuv = `
import importlib.util, mmap, os
torch = importlib.util.find_spec("torch")
if torch is not None and torch.origin:
    with open(os.path.join(os.path.dirname(torch.origin), "lib", "libtorch_cpu.so"), "rb") as file:
        library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        if library.find(b"without libuv support") >= 0 and library.find(b"LibUVStoreDaemon") < 0:
            print("no")
`

// lacksLibuv reports whether the command is a Python, or a script of one, whose PyTorch needs
// USE_LIBUV=0, unless the user has chosen. What goes wrong here is the program's to report.
func lacksLibuv(ctx context.Context, command string) bool {
	python := pythonOf(command)
	if _, given := os.LookupEnv(withoutLibuv); given || python == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, libuvLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", asksForLibuv)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	return err == nil && strings.HasSuffix(strings.TrimSpace(string(out)), "no")
}

// pythonOf returns the Python that runs a command: it is one itself, or its first line names one,
// as that of torchrun does. "" if neither is so.
func pythonOf(command string) string {
	isPython := func(name string) bool { return strings.HasPrefix(filepath.Base(name), "python") }
	if isPython(command) {
		return command
	}
	path, err := exec.LookPath(command)
	if err != nil {
		return ""
	}
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	line, _ := bufio.NewReader(io.LimitReader(file, 256)).ReadString('\n') // the kernel reads no more
	words, isScript := strings.CutPrefix(line, "#!")
	if !isScript {
		return ""
	}
	for _, word := range strings.Fields(words) { // it may come after env
		if isPython(word) {
			return word
		}
	}
	return ""
}
