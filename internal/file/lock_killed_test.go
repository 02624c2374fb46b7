// SPDX-License-Identifier: Apache-2.0

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// lockFor names the file that a process of TestLockEndsWithItsProcess locks.
const lockFor = "LIBRA_TEST_LOCK"

func TestMain(m *testing.M) {
	if path := os.Getenv(lockFor); path != "" {
		unlock, err := Lock(path, ".lock")
		fmt.Println(err)
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		fmt.Println(unlock())                // only now: a file without references is closed
		return
	}
	os.Exit(m.Run())
}

// The lock of a killed process is free, even though its file stays.
func TestLockEndsWithItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), lockFor+"="+path)
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "<nil>\n" {
		t.Errorf("the other process says %q, %v", line, err)
	}
	if _, err := Lock(path, ".lock"); !errors.Is(err, ErrLocked) {
		t.Errorf("while it has the lock: %v", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // the error is that it was killed
	if _, err := os.Stat(path + ".lock"); err != nil {
		t.Errorf("the file that it left: %v", err)
	}
	unlock, err := Lock(path, ".lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}
