// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/libra-ina/libra/cluster"
)

// badFields are invalid values of a cluster's file, by the text with which its reader has to refuse
// them.
var badFields = []struct {
	named  string
	change func(*cluster.Config)
}{
	{"server.address", func(c *cluster.Config) { c.Server.Address = c.Switch.Address }},
	{"workers[0].address", func(c *cluster.Config) { c.Workers[0].Address = c.Switch.Address }},
	{"workers[0].address", func(c *cluster.Config) { c.Workers[0].Address = c.Server.Address }},
	{"workers[1].address", func(c *cluster.Config) {
		c.Workers = append(c.Workers[:1:1], c.Workers[0])
		c.Workers[1].ID++
	}},
	{"workers[0].address", func(c *cluster.Config) { c.Workers[0].Address = netip.MustParseAddr("fd00::3") }},
	{"workers[0].address", func(c *cluster.Config) { c.Workers[0].Address = netip.MustParseAddr("fe80::3%eth0") }},
	{"workers[1].id", func(c *cluster.Config) { c.Workers = append(c.Workers[:1:1], c.Workers[0]) }},
	{"workers[0].id", func(c *cluster.Config) { c.Workers[0].ID = math.MaxUint16 }},
	{"switch.control", func(c *cluster.Config) { c.Switch.Control = netip.MustParseAddrPort("0.0.0.0:0") }},
	{"server.control", func(c *cluster.Config) { c.Server.Control = c.Switch.Control }},
	{"data: train and synthetic", func(c *cluster.Config) { c.Data.Train = "train.libsvm" }},
	{"tls", func(c *cluster.Config) { c.TLS.CA = "ca.pem" }},
	{"model.learning_rate", func(c *cluster.Config) { c.Model.LearningRate = 1e-60 }},
	{"model.l2", func(c *cluster.Config) { c.Model.L2 = 1e-60 }},
	{"job.id", func(c *cluster.Config) { c.Job.ID = 256 }},
	{"job.exponent", func(c *cluster.Config) { c.Job.Exponent = new(1000) }},
	{"a second YAML document", nil},
}

// readBadFile makes the operator of one life in four write the cluster's file first with a mistake,
// and then without. It returns the reader's error: it must refuse mistakes by name, and nothing
// else.
func (c *clusterLife) readBadFile() string {
	rng := c.options.named("misread")
	if rng.IntN(4) > 0 {
		return ""
	}
	path := filepath.Join(c.dir, "cluster.yaml")
	read := func(change func(*cluster.Config), more string) error {
		cfg := c.cfg
		cfg.Workers = append([]cluster.Worker(nil), cfg.Workers...)
		if change != nil {
			change(&cfg)
		}
		if err := cfg.Write(path); err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, append(text, more...), 0o600)
		}
		if err == nil {
			_, err = cluster.Read(path)
		}
		return err
	}
	wrong, more := badFields[rng.IntN(len(badFields))], ""
	if wrong.change == nil {
		more = "---\nbackend: udp\n"
	}
	if err := read(wrong.change, more); err == nil || !strings.Contains(err.Error(), wrong.named) {
		return fmt.Sprintf("a file that is wrong about %q is read with the error %v", wrong.named, err)
	}
	if err := read(nil, ""); err != nil {
		return fmt.Sprintf("the file of the cluster is refused: %v", err)
	}
	return ""
}
