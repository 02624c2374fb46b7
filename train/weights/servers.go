// SPDX-License-Identifier: Apache-2.0

package weights

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/libra-ina/libra/ps"
)

// attachment has the needed fields of a checkpoint's attachment (docs/checkpoint.md).
type attachment struct {
	Agreed map[string]string
	Server int
	Step   uint64
}

// servers returns the number of servers of the job.
func (a *attachment) servers() (int, error) {
	return strconv.Atoi(cmp.Or(a.Agreed["servers"], "1"))
}

// ReadCheckpoints reads the checkpoints of all servers of a job, in any order. It returns a store
// with the rows of all, and an attachment for a checkpoint of one server. Errors name the file, and
// files that are missing or do not belong together; they wrap those of package ps.
func ReadCheckpoints(paths ...string) (*ps.Store, []byte, error) {
	stores := make([]*ps.Store, len(paths))
	named := make([]string, len(paths)) // by index
	var first []byte
	var step uint64
	var training, trained string // identity of the training, and a file that has it
	var untrained string         // a file without rows and identity: of a server that no worker has joined
	for i, path := range paths {
		cfg, err := ps.CheckpointConfig(path)
		if err != nil {
			return nil, nil, err
		}
		store, attached, err := ps.Restore(path, cfg)
		if err != nil {
			return nil, nil, err
		}
		if cfg.Optimizer.Method == ps.None {
			return nil, nil, fmt.Errorf("%s: it is of a job without weights, whose model.optimizer is none: give the checkpoint of one with adagrad or sgd", path)
		}
		var a attachment
		servers := 1
		if json.Unmarshal(attached, &a) == nil { // otherwise it is not of a training, and of one server
			if servers, err = a.servers(); err != nil {
				return nil, nil, fmt.Errorf("%s: it names %q servers: %w", path, a.Agreed["servers"], ps.ErrCorrupt)
			}
		}
		switch {
		case servers != len(paths):
			return nil, nil, fmt.Errorf("%s: it is of server %d of a job with %d (by index, from 0), and the number of files is %d: give the checkpoints of all its servers, separated by commas", path, a.Server, servers, len(paths))
		case a.Server < 0 || a.Server >= servers:
			return nil, nil, fmt.Errorf("%s: it names server %d of %d (by index, from 0): %w", path, a.Server, servers,
				ps.ErrCorrupt)
		case stores[a.Server] != nil:
			return nil, nil, fmt.Errorf("%s: it is of server %d, as is %s: give the checkpoint of each server once", path,
				a.Server, named[a.Server])
		case i > 0 && a.Agreed["job.sync"] == "true" && a.Step != step:
			return nil, nil, fmt.Errorf("%s: it is of step %d, and %s of step %d: give checkpoints of one step (the one before the last is in FILE.previous)", path, a.Step, paths[0], step)
		}
		if id := a.Agreed["training"]; id != "" && training != "" && id != training {
			return nil, nil, fmt.Errorf("%s: it is of training %s, and %s of training %s: give checkpoints of one training", path, id, trained, training)
		} else if id != "" {
			training, trained = id, path
		} else if store.Len() == 0 {
			untrained = path
		}
		step, stores[a.Server], named[a.Server] = a.Step, store, path
		if a.Server == 0 {
			first = attached
		}
	}
	if untrained != "" && training != "" {
		return nil, nil, fmt.Errorf("%s: it is of a server that was started without its rows, and %s of training %s: give checkpoints of one training", untrained, trained, training)
	}
	if len(paths) == 1 {
		return stores[0], first, nil
	}
	all, err := ps.Merge(stores...)
	if err != nil {
		return nil, nil, err
	}
	first, err = ofOneServer(first)
	return all, first, err
}

// ofOneServer turns the attachment of server 0 into that of a single server.
func ofOneServer(attached []byte) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(attached, &fields); err != nil {
		return nil, err
	}
	agreed, ok := fields["agreed"].(map[string]any)
	if !ok {
		return nil, errors.New("the attachment of the checkpoint of server 0 is not that of a training")
	}
	agreed["servers"] = "1"
	delete(agreed, "job.hot_set")
	return json.Marshal(fields)
}
