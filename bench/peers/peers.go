// Package peers holds the programs in C that 'libra bench engine' measures
// package afxdp against, and builds them where a compiler and the headers are.
package peers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed xdp_peer.c
var xdpPeer string

// Install says how to get what BuildXDP needs.
const Install = "apt-get install gcc libc6-dev libxdp-dev libbpf-dev libelf-dev"

// ErrBuild is wrapped by BuildXDP's error where the program cannot be compiled; the
// message carries the compiler's first complaint.
var ErrBuild = errors.New("peers: cannot build the C program")

// BuildXDP compiles the AF_XDP peer on libxdp and writes the executable to w.
func BuildXDP(ctx context.Context, w io.Writer) (err error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBuild, err)
	}
	dir, err := os.MkdirTemp("", "libra-peers-")
	if err != nil {
		return fmt.Errorf("peers: directory to compile in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "xdp_peer")
	cmd := exec.CommandContext(ctx, cc, "-O3", "-Wall", "-x", "c", "-", "-o", path, "-lxdp", "-lbpf", "-lelf")
	cmd.Stdin = strings.NewReader(xdpPeer)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrBuild, complaint(string(out)), err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("peers: read the compiled program: %w", err)
	}
	if _, err := w.Write(program); err != nil {
		return fmt.Errorf("peers: store the compiled program: %w", err)
	}
	return nil
}

// complaint returns the line of a compiler's output that says what is wrong.
func complaint(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, l := range lines {
		if strings.Contains(l, "error") || strings.Contains(l, "cannot find") {
			return l
		}
	}
	return lines[0]
}
