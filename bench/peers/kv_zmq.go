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

//go:embed kv_zmq.cc
var kvZMQ string

// InstallZMQ says how to get what BuildZMQ needs.
const InstallZMQ = "apt-get install g++ libzmq3-dev"

// BuildZMQ compiles the key-value program on libzmq and writes the executable to w.
// The error wraps [ErrBuild] where a compiler or the library is missing.
func BuildZMQ(ctx context.Context, w io.Writer) (err error) {
	cxx, err := exec.LookPath("c++")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBuild, err)
	}
	dir, err := os.MkdirTemp("", "libra-peers-")
	if err != nil {
		return fmt.Errorf("peers: directory to compile in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "kv_zmq")
	cmd := exec.CommandContext(ctx, cxx, "-O2", "-std=c++20", "-Wall", "-x", "c++", "-", "-o", path, "-lzmq", "-pthread")
	cmd.Stdin = strings.NewReader(kvZMQ)
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
