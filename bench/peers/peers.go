// Package peers holds the programs in C that 'libra bench engine' measures
// package afxdp against, and builds them where a compiler and the headers are.
package peers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

//go:embed xdp_peer.c
var xdpPeer string

// Install says how to get what BuildXDP needs.
const Install = "apt-get install gcc libc6-dev libxdp-dev libbpf-dev libelf-dev"

// ErrBuild is wrapped by the errors of BuildXDP; the message carries the
// compiler's first complaint.
var ErrBuild = errors.New("peers: cannot build the C program")

// BuildXDP compiles the AF_XDP peer on libxdp to an executable at path.
func BuildXDP(ctx context.Context, path string) error {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBuild, err)
	}
	cmd := exec.CommandContext(ctx, cc, "-O3", "-Wall", "-x", "c", "-", "-o", path, "-lxdp", "-lbpf", "-lelf")
	cmd.Stdin = strings.NewReader(xdpPeer)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrBuild, complaint(string(out)), err)
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
