// SPDX-License-Identifier: Apache-2.0

package data

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	long := strings.TrimSuffix(strings.Repeat("18446744073709551615 ", 10_000), " ") // more than a buffer has
	for name, text := range map[string]string{
		"worker-11.keys": "5\n", "worker-13.keys": "", "worker-9.keys": "0 1\n" + long + "\n7 8", "notes": "none\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string][]int{dir: {1, 2, 10_000}, filepath.Join(dir, "worker-9.keys"): {2, 10_000}} {
		k, err := OpenKeys(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			var s Sample
			var got []int
			for err = k.Next(&s); err == nil; err = k.Next(&s) {
				got = append(got, len(s.Keys))
				if len(s.Keys) == 2 && (s.Keys[0] != 0 || s.Keys[1] != 1) {
					t.Errorf("keys %v", s.Keys)
				}
			}
			if !errors.Is(err, io.EOF) || !slices.Equal(got, want) || k.Rows() != len(want) {
				t.Errorf("%s: pushes of %v keys, %v, %d rows", path, got, err, k.Rows())
			}
			if err := k.Rewind(); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
	for text, want := range map[string]string{
		"1 2\n3,4\n": `:2: "3,4" is no key`, "1  2\n": `:1: "" is no key`, "\n": `:1: "" is no key`,
		"-1\n": `"-1" is no key`, "18446744073709551616\n": "is no key",
	} {
		path := filepath.Join(t.TempDir(), "bad.keys")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		k, err := OpenKeys(path)
		for s := (Sample{}); err == nil; {
			err = k.Next(&s)
		}
		if !strings.Contains(err.Error(), "bad.keys") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
		_ = k.Close()
	}
	if _, err := OpenKeys(t.TempDir()); err == nil || !strings.Contains(err.Error(), "has no file *.keys") {
		t.Errorf("of an empty folder: %v", err)
	}
	if _, err := OpenKeys(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
