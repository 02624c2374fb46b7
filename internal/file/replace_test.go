// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// powerDisk is a disk in memory that can lose power, and with it everything that is not durable.
// Names become durable by syncDir, contents by Sync.
type powerDisk struct {
	names   map[string]*powerFile // visible to programs
	durable map[string]*powerFile // names that survive
	left    int                   // operations until the power is lost
	fail    int                   // the operation that fails, or -1
	ops     []string
}

type powerFile struct {
	disk            *powerDisk
	content, stable []byte
	mode            fs.FileMode
	closed          bool
}

const suffix = ".tmp"

var (
	errPower = errors.New("power is lost")
	errDisk  = errors.New("the disk is broken")
)

// step counts an operation.
func (d *powerDisk) step(name string) error {
	if d.left == 0 {
		return errPower
	}
	d.left--
	d.ops = append(d.ops, name)
	if d.fail == len(d.ops)-1 {
		return errDisk
	}
	return nil
}

func (d *powerDisk) Resolve(path string) string { return path }

func (d *powerDisk) Create(path string, mode fs.FileMode) (Writer, error) {
	if err := d.step("create"); err != nil {
		return nil, err
	}
	if d.names[path] != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrExist}
	}
	f := &powerFile{disk: d, mode: mode &^ 0o022}
	d.names[path] = f
	return f, nil
}

func (d *powerDisk) Rename(from, to string) error {
	if err := d.step("rename"); err != nil {
		return err
	}
	if d.names[from] == nil {
		return fs.ErrNotExist
	}
	d.names[to] = d.names[from]
	delete(d.names, from)
	// A kernel may write the new name at any time, and before the contents.
	d.durable[to] = d.names[to]
	return nil
}

func (d *powerDisk) Remove(path string) error {
	if err := d.step("remove"); err != nil {
		return err
	}
	if d.names[path] == nil {
		return fs.ErrNotExist
	}
	delete(d.names, path)
	return nil
}

func (d *powerDisk) Mode(path string) (fs.FileMode, error) {
	if err := d.step("mode"); err != nil {
		return 0, err
	}
	if f := d.names[path]; f != nil {
		return f.mode, nil
	}
	return 0, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
}

func (d *powerDisk) SyncDir(path string) error {
	if err := d.step("sync folder"); err != nil {
		return err
	}
	if path != "dir" {
		return fmt.Errorf("folder %q: %w", path, fs.ErrNotExist)
	}
	d.durable = maps.Clone(d.names)
	return nil
}

func (f *powerFile) Write(b []byte) (int, error) {
	if err := f.disk.step("write"); err != nil {
		return 0, err
	}
	f.content = append(f.content, b...)
	return len(b), nil
}

func (f *powerFile) Sync() error {
	if err := f.disk.step("sync"); err != nil {
		return err
	}
	f.stable = bytes.Clone(f.content)
	return nil
}

func (f *powerFile) Chmod(mode fs.FileMode) error {
	if err := f.disk.step("chmod"); err != nil {
		return err
	}
	f.mode = mode
	return nil
}

func (f *powerFile) Close() error {
	err := f.disk.step("close")
	f.closed = true
	return err
}

// newPowerDisk returns a disk with the file dir/x, or without it if its content is empty.
func newPowerDisk(content string, mode fs.FileMode) *powerDisk {
	d := &powerDisk{names: map[string]*powerFile{}, durable: map[string]*powerFile{}, left: -1, fail: -1}
	if content != "" {
		d.names["dir/x"] = &powerFile{disk: d, content: []byte(content), stable: []byte(content), mode: mode}
		d.durable = maps.Clone(d.names)
	}
	return d
}

func writeText(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// After a loss of power either the complete old or the complete new file exists; after Replace has
// returned, the new one.
func TestReplaceSurvivesPowerLoss(t *testing.T) {
	for _, old := range []string{"", "the old one"} {
		for left := 0; ; left++ {
			d := newPowerDisk(old, 0o640)
			d.left = left
			err := ReplaceOn(d, "dir/x", suffix, writeText("the new one"))
			got := ""
			if f := d.durable["dir/x"]; f != nil {
				got = string(f.stable)
				if got == "" {
					t.Fatalf("old %q, after %v: the file is empty", old, d.ops)
				}
			}
			if got != old && got != "the new one" {
				t.Fatalf("old %q, after %v: the file holds %q", old, d.ops, got)
			}
			if err == nil {
				if got != "the new one" || d.ops[len(d.ops)-1] != "sync folder" {
					t.Fatalf("old %q, after %v without an error: the file holds %q", old, d.ops, got)
				}
				break
			}
			if !errors.Is(err, errPower) {
				t.Fatalf("old %q, after %v: %v", old, d.ops, err)
			}
		}
	}
}

// If an operation fails, the old file stays, no temporary one does, and the error names the
// operation.
func TestReplaceReportsEveryFailure(t *testing.T) {
	for fail := 0; ; fail++ {
		d := newPowerDisk("the old one", 0o640)
		d.fail = fail
		err := ReplaceOn(d, "dir/x", suffix, writeText("the new one"))
		if len(d.ops) <= fail {
			if err != nil {
				t.Fatalf("no failure: %v", err)
			}
			return
		}
		if !errors.Is(err, errDisk) {
			t.Fatalf("%v fails: error %v", d.ops[fail], err)
		}
		want := "the old one"
		if d.ops[fail] == "sync folder" { // the new name may or may not survive
			want = "the new one"
		}
		if got := string(d.names["dir/x"].content); got != want {
			t.Errorf("%v fails: the file holds %q", d.ops[fail], got)
		}
		if d.names["dir/x"+suffix] != nil {
			t.Errorf("%v fails: the temporary file stays", d.ops[fail])
		}
	}
}

func TestReplaceKeepsTheMode(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o640, 0o666} {
		d := newPowerDisk("the old one", mode)
		if err := ReplaceOn(d, "dir/x", suffix, writeText("new")); err != nil || d.names["dir/x"].mode != mode {
			t.Errorf("mode %v of a file that had %v, %v", d.names["dir/x"].mode, mode, err)
		}
	}
	d := newPowerDisk("", 0)
	if err := ReplaceOn(d, "dir/x", suffix, writeText("new")); err != nil || d.names["dir/x"].mode != 0o644 || !d.durable["dir/x"].closed {
		t.Errorf("a new file: %+v, %v", d.names["dir/x"], err)
	}
}

// Two processes that write one file do not write to the same temporary file.
func TestReplaceSharesNoTemporaryFile(t *testing.T) {
	d := newPowerDisk("the old one", 0o640)
	d.names["dir/x"+suffix] = &powerFile{disk: d, content: []byte("another's")}
	err := ReplaceOn(d, "dir/x", suffix, writeText("new"))
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("error %v", err)
	}
	if got := d.names["dir/x"+suffix]; got == nil || string(got.content) != "another's" {
		t.Error("the other's file was touched")
	}
}

// TestReplaceGoesInOrder checks the order of operations on the disk, and of two errors: the cause
// comes first.
func TestReplaceGoesInOrder(t *testing.T) {
	d := newPowerDisk("the old one", 0o640)
	if err := ReplaceOn(d, "dir/x", suffix, writeText("new")); err != nil {
		t.Fatal(err)
	}
	const want = "mode create write mode chmod sync close rename sync folder"
	if got := strings.Join(d.ops, " "); got != want {
		t.Errorf("operations %s, want %s", got, want)
	}
	d = newPowerDisk("the old one", 0o640)
	d.fail, d.left = 6, 7 // closing fails, and then there is no power to clean up
	err := ReplaceOn(d, "dir/x", suffix, writeText("new"))
	if err == nil || err.Error() != errDisk.Error()+"\n"+errPower.Error() {
		t.Errorf("error %v", err)
	}
}

// TestReplace replaces a file behind a link, a new one, and a name that cannot be replaced.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "x"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "folder"), 0o700), os.Symlink("x", link)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"first", "second"} {
		if err := Replace(link, suffix, writeText(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("the file holds %q, %v", got, err)
		}
	}
	if err := Replace(filepath.Join(dir, "folder"), suffix, writeText("text")); err == nil {
		t.Error("replaced a folder")
	}
	if err := Replace(filepath.Join(dir, "none", "x"), suffix, writeText("text")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if err := (OS{}).SyncDir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder to sync: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// TestPrepare removes the files of a killed process, and nothing else.
func TestPrepare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path+suffix, []byte("half a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, suffix, writeText("text")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("beside another's file: %v", err)
	}
	if err := errors.Join(Prepare(path, suffix), Replace(path, suffix, writeText("text"))); err != nil {
		t.Error(err)
	}
	if err := Prepare(path, suffix); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "text" {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

// If replacing a file would fail, Prepare fails, too, and leaves nothing behind: a full disk
// accepts an empty file.
func TestPrepareReportsEveryFailure(t *testing.T) {
	for fail := 0; ; fail++ {
		d := newPowerDisk("the old one", 0o640)
		d.names["dir/x"+suffix] = &powerFile{disk: d}
		d.fail = fail
		err := PrepareOn(d, "dir/x", suffix)
		if len(d.ops) <= fail {
			if want := "remove mode create write sync close remove"; err != nil || strings.Join(d.ops, " ") != want {
				t.Errorf("%v: %v, want %s", d.ops, err, want)
			}
			return
		}
		if !errors.Is(err, errDisk) {
			t.Errorf("%v fails: error %v", d.ops[fail], err)
		}
		if d.ops[fail] != "remove" && d.names["dir/x"+suffix] != nil {
			t.Errorf("%v fails: the temporary file stays", d.ops[fail])
		}
	}
}

// A link to a file that does not exist yet is relative to the link's folder, not to the path there.
func TestReplaceBehindALinkToNothingInALinkedFolder(t *testing.T) {
	for _, link := range []string{"../file", "../../way/../file"} {
		replaceBehind(t, link)
	}
}

func replaceBehind(t *testing.T, link string) {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "disk", "links"), 0o700),
		os.Symlink(link, filepath.Join(dir, "disk", "links", "x")),
		os.Symlink("disk/links", filepath.Join(dir, "way"))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "way", "x")
	if err := Prepare(path, suffix); err != nil {
		t.Fatal(err)
	}
	// The same name before the file exists and afterwards, for callers that lock it.
	before := Resolve(path)
	if err := Replace(path, suffix, writeText("new")); err != nil {
		t.Fatal(err)
	}
	if after := Resolve(path); before != after {
		t.Errorf("the file is %s before it is there, %s afterwards", before, after)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "disk", "file")); string(got) != "new" {
		t.Errorf("the link's target: %q, %v", got, err)
	}
	if to, err := os.Readlink(path); to != link || err != nil {
		t.Errorf("the link: %q, %v", to, err)
	}
}

// Root may rename a file over a device: /dev/null would then be lost to all programs of the
// machine.
func TestDevicesAndPipesAreNotReplaced(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("pipe", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, link} {
		if err := Prepare(path, suffix); !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), "pipe") {
			t.Errorf("prepare %s: %v", path, err)
		}
		err := Replace(path, suffix, func(io.Writer) error { t.Error("it is written"); return nil })
		if !errors.Is(err, ErrNotRegular) {
			t.Errorf("replace %s: %v", path, err)
		}
		if info, err := os.Lstat(pipe); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
			t.Fatalf("%v, %v: the pipe is gone", info, err)
		}
	}
	if names, err := os.ReadDir(dir); len(names) != 2 || err != nil {
		t.Errorf("left behind: %v, %v", names, err)
	}
}
