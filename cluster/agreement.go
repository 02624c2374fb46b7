// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"fmt"
	"io"
	"strconv"

	"github.com/libra-ina/libra/internal/file"
)

// Agreement lists, by field, the values that all hosts of a job must have in common for their
// training to be valid: they are compared when a worker joins. Values local to a host, such as
// paths, are not part of it; the training data of a file is compared by [Data.Fingerprint], because
// the server need not have the file.
func (c *Config) Agreement() map[string]string {
	m := c.Model
	float := func(x float64) string { return strconv.FormatFloat(float64(float32(x)), 'g', -1, 32) }
	a := map[string]string{
		"port": strconv.Itoa(int(c.Port)),
		// both ends of a flow measure the same frames
		"telemetry.sample": strconv.Itoa(c.Telemetry.OneIn()),
		// a host receives no frames longer than it can send
		"switch.stripes":            fmt.Sprintf("for an MTU of %d", c.MTU()),
		"codec.bound":               "none",
		"codec.scale":               strconv.Itoa(c.Codec.Config().Scale),
		"job.arithmetic":            c.Job.Arithmetic,
		"job.exponent":              strconv.Itoa(c.Job.Config().Exp),
		"job.ids":                   fmt.Sprint(c.Job.IDs),                // hot rows are dealt out among them
		"job.plan":                  strconv.FormatBool(c.Job.Plan != ""), // the server has it
		"job.sync":                  strconv.FormatBool(c.Job.Sync),
		"workers":                   fmt.Sprint(c.WorkerIDs()), // rows are dealt out in their order
		ServersField:                strconv.Itoa(len(c.AllServers())),
		"model.kind":                m.Kind,
		"model.task":                m.Task,
		"model.factors":             strconv.Itoa(m.Factors),
		"model.optimizer":           m.Optimizer,
		"model.learning_rate":       float(m.LearningRate),
		"model.initial_accumulator": float(m.InitialAccumulator),
		"model.init_scale":          float(m.InitScale),
		"model.l2":                  float(m.L2),
		"model.batch":               strconv.Itoa(m.Batch),
		"model.epochs":              strconv.Itoa(m.Epochs),
		"model.seed":                strconv.FormatUint(m.Seed, 10),
		"data.window":               strconv.Itoa(c.Data.Window), // the order of rows depends on it
	}
	if bound := c.Codec.Bound; bound != nil {
		a["codec.bound"] = strconv.Itoa(*bound)
	}
	if s := c.Data.Synthetic; s != nil {
		a[DataField] = s.fingerprint()
	}
	return a
}

// ServersField is the name of the number of servers in an agreement, which determines the owner of
// each row.
const ServersField = "servers"

// DataField is the name of the training data in an agreement.
const DataField = "data"

// Fingerprint identifies training rows: a file by its size and the SHA-256 of its first MiB. A job
// that only clients of agents train has none.
func (d Data) Fingerprint() (string, error) {
	switch {
	case d.Synthetic != nil:
		return d.Synthetic.fingerprint(), nil
	case d.Train == "":
		return "none", nil
	}
	f, err := file.Open(d.Train)
	if err != nil {
		return "", fmt.Errorf("data.train: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	info, err := f.Stat()
	if err == nil {
		_, err = io.Copy(h, io.LimitReader(f, 1<<20))
	}
	if err != nil {
		return "", fmt.Errorf("data.train: %w", err)
	}
	return fmt.Sprintf("%d bytes, sha256 of the first MiB %x", info.Size(), h.Sum(nil)), nil
}

func (s *Synthetic) fingerprint() string {
	return fmt.Sprintf("synthetic, rows %d from %d, seed %d, hot %d with share %g", s.Rows, s.First, s.Seed, s.Hot,
		s.HotShare)
}
