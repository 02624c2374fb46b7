// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/link"
)

// Recording writes a link's frames into a file.
type Recording struct {
	path string
	stop chan struct{}
	done chan error

	result Result // valid after done
}

// Record creates a file, and the folders above it, and writes to it the frames that a link sends
// and receives from then on. It overwrites an existing file.
func Record(path string, tap *link.Tap, src Source) (*Recording, error) {
	if err := file.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	out, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	if err := file.Give(path); err != nil {
		return nil, errors.Join(fmt.Errorf("capture: %w", err), out.Close())
	}
	w, err := NewWriter(out, src)
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	listener, err := tap.Listen(queueBytes)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("capture: %w", err), out.Close())
	}
	r := &Recording{path: path, stop: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		err := pump(listener, r.stop, w.Write, w.Flush)
		if err == nil {
			r.result.Frames, r.result.Dropped = listener.Counts()
			err = w.Close(r.result.Dropped)
		}
		r.done <- errors.Join(err, out.Close())
	}()
	return r, nil
}

// Close ends the recording and returns its error, if any. The file has all frames that the link
// sent and received before. It must be called once.
func (r *Recording) Close() (Result, error) {
	close(r.stop)
	if err := <-r.done; err != nil {
		return r.result, fmt.Errorf("%s is incomplete: %w", r.path, err)
	}
	return r.result, nil
}
