package ps

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
	"testing"
)

// powerDisk is a disk in memory that can lose power: what was not made durable is
// then gone. Names become durable by syncDir, contents by Sync.
type powerDisk struct {
	names   map[string]*powerFile // as programs see them
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

func (d *powerDisk) create(path string, mode fs.FileMode) (diskFile, error) {
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

func (d *powerDisk) rename(from, to string) error {
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

func (d *powerDisk) remove(path string) error {
	if err := d.step("remove"); err != nil {
		return err
	}
	if d.names[path] == nil {
		return fs.ErrNotExist
	}
	delete(d.names, path)
	return nil
}

func (d *powerDisk) mode(path string) (fs.FileMode, error) {
	if err := d.step("mode"); err != nil {
		return 0, err
	}
	if f := d.names[path]; f != nil {
		return f.mode, nil
	}
	return 0, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
}

func (d *powerDisk) syncDir(path string) error {
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

// newPowerDisk returns a disk with the file dir/x, unless its content is empty.
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

// Whenever the power is lost, the old or the new file is there, whole; when replace
// has returned, the new one.
func TestReplaceSurvivesPowerLoss(t *testing.T) {
	for _, old := range []string{"", "the old one"} {
		for left := 0; ; left++ {
			d := newPowerDisk(old, 0o640)
			d.left = left
			err := replace(d, "dir/x", writeText("the new one"))
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

// When an operation fails, the old file stays, no temporary one does, and the error
// says so.
func TestReplaceReportsEveryFailure(t *testing.T) {
	for fail := 0; ; fail++ {
		d := newPowerDisk("the old one", 0o640)
		d.fail = fail
		err := replace(d, "dir/x", writeText("the new one"))
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
		if d.names["dir/x"+temporary] != nil {
			t.Errorf("%v fails: the temporary file stays", d.ops[fail])
		}
	}
}

func TestReplaceKeepsTheMode(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o640, 0o666} {
		d := newPowerDisk("the old one", mode)
		if err := replace(d, "dir/x", writeText("new")); err != nil || d.names["dir/x"].mode != mode {
			t.Errorf("mode %v of a file that had %v, %v", d.names["dir/x"].mode, mode, err)
		}
	}
	d := newPowerDisk("", 0)
	if err := replace(d, "dir/x", writeText("new")); err != nil || d.names["dir/x"].mode != 0o644 || !d.durable["dir/x"].closed {
		t.Errorf("a new file: %+v, %v", d.names["dir/x"], err)
	}
}

// Two servers that write one checkpoint do not write one file.
func TestReplaceSharesNoTemporaryFile(t *testing.T) {
	d := newPowerDisk("the old one", 0o640)
	d.names["dir/x"+temporary] = &powerFile{disk: d, content: []byte("another's")}
	err := replace(d, "dir/x", writeText("new"))
	if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "another server") {
		t.Errorf("error %v", err)
	}
	if got := d.names["dir/x"+temporary]; got == nil || string(got.content) != "another's" {
		t.Error("the other's file was touched")
	}
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestCheckpointFile(t *testing.T) {
	cfg := Config{Dim: 3, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}, Init: Init{Seed: 5}}
	dir := t.TempDir()
	path := filepath.Join(dir, "job0.ckpt")
	if err := os.WriteFile(path, []byte("the previous one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // more than the umask leaves
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	s := sample(t, cfg)
	if err := s.Checkpoint(link, []byte("filter")); err != nil {
		t.Fatal(err)
	}
	r, attachment, err := Restore(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if string(attachment) != "filter" || lastHarvest(r) != 12 || r.Hash() != s.Hash() {
		t.Errorf("attachment %q, harvest %d", attachment, lastHarvest(r))
	}
	if !bytes.Equal(encode(t, s, nil), encode(t, r, nil)) {
		t.Error("a restored store makes another file")
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o666 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if target, err := os.Readlink(link); err != nil || target != path {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("files %v", got)
	}
	fresh := filepath.Join(dir, "fresh")
	if err := s.Checkpoint(fresh, nil); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(fresh); err != nil || info.Mode()&^0o644 != 0 || info.Mode()&0o600 != 0o600 {
		t.Errorf("a new file has mode %v, %v", info.Mode(), err)
	}
}

func TestFailedCheckpointLeavesTheOldOne(t *testing.T) {
	s := sample(t, Config{Dim: 1, Exp: DefaultExp})
	dir := t.TempDir()
	if err := s.Checkpoint(filepath.Join(dir, "absent", "x"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent directory: %v", err)
	}
	// A directory cannot be replaced by a file: the rename fails.
	path := filepath.Join(dir, "x")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Checkpoint(path, nil); err == nil || !strings.Contains(err.Error(), "writing checkpoint") {
		t.Errorf("a directory: %v", err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("files %v", got)
	}
	if _, _, err := Restore(filepath.Join(dir, "none"), Config{Dim: 1, Exp: DefaultExp}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
}

func TestPrepareCheckpoint(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	for _, name := range []string{"x", "x.tmp", "y.tmp", "x.other"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half a chec"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := PrepareCheckpoint(path); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(names(t, dir), " "); got != "x x.other y.tmp" {
			t.Errorf("left: %s", got)
		}
	}
	if err := os.MkdirAll(path+".tmp/full", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := PrepareCheckpoint(path); err == nil || !strings.Contains(err.Error(), path+".tmp") {
		t.Errorf("a folder: %v", err)
	}
	missing := filepath.Join(dir, "none", "x")
	if err := PrepareCheckpoint(missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("no folder: %v", err)
	}
}

// A link may lead, over others, to where there is no file yet: that is where the
// checkpoint goes.
func TestCheckpointBehindALinkToNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "disk"), 0o700); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"first": filepath.Join(dir, "second"), "second": "disk/../disk/weights", "loop": "pool", "pool": "loop"}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{Dim: 2, Exp: -20}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		path := filepath.Join(dir, "first")
		if err := errors.Join(PrepareCheckpoint(path), s.Checkpoint(path, nil)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Restore(filepath.Join(dir, "disk", "weights"), cfg); err != nil {
			t.Error(err)
		}
		if got := names(t, filepath.Join(dir, "disk")); len(got) != 1 {
			t.Errorf("files %v", got)
		}
	}
	if err := s.Checkpoint(filepath.Join(dir, "loop"), nil); err == nil {
		t.Error("links in a circle lead to a file")
	}
	for name, to := range links {
		if got, err := os.Readlink(filepath.Join(dir, name)); err != nil || got != to {
			t.Errorf("link %s leads to %q, %v", name, got, err)
		}
	}
}
