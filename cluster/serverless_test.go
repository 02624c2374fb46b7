// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const serverless = `backend: udp
job: {id: 3, hot_set: hot.libra}
switch: {address: 127.0.0.2, control: "127.0.0.2:7700"}
workers: [{id: 1, address: 127.0.0.3}]
`

// A file without a server, a model and data is one of jobs whose owners are clients, for those who
// ask for it. It is written as it was read.
func TestFileWithoutServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(serverless)
	for range 2 {
		c, err := ReadAny(path)
		if err != nil {
			t.Fatal(err)
		}
		if !c.Serverless() || len(c.AllServers()) != 0 || c.Job.Harvest == 0 || c.Silence == 0 {
			t.Errorf("%+v", c)
		}
		if err := c.Write(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "server: there is none, nor a model or data") {
		t.Errorf("where a server is needed: %v", err)
	}
	for more, want := range map[string]string{
		"model: {kind: lr}":                           "server.address: an IP address is required",
		"data: {train: t}":                            "server.address: an IP address is required",
		"server: {address: 127.0.0.4}":                "server.control: an IP:port is required",
		"job: {id: 3, hot_set: h, sync: true}":        "job.sync: true, but the file has no server",
		"job: {id: 3, hot_set: h, harvest_frames: 5}": "job.harvest_frames: 5, but the file has no server",
		"job: {id: 3, hot_set: h, arithmetic: lut}":   `job.arithmetic: "lut", but the file has no server`,
		"job: {id: 3, hot_set: h, harvest: 2h}":       "job.harvest: 2h0m0s is not in",
	} {
		text := serverless
		if strings.HasPrefix(more, "job") {
			text = strings.Replace(text, "job: {id: 3, hot_set: hot.libra}\n", "", 1)
		}
		write(text + more + "\n")
		if _, err := ReadAny(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", more, err, want)
		}
	}
}

// Jobs of libra glm need no hot set, so such a file may leave it out. One with a server may not.
func TestFileWithoutServerAndHotSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	text := strings.Replace(serverless, ", hot_set: hot.libra", "", 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := ReadAny(path); err != nil || c.Job.HotSet != "" || !c.Serverless() {
		t.Errorf("%+v, %v", c, err)
	}
	if err := os.WriteFile(path, []byte(text+"model: {kind: lr}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAny(path); err == nil || !strings.Contains(err.Error(), "job.hot_set: the path of a hot-set file is required") {
		t.Error(err)
	}
}

// A range has a worker for each of its jobs, and no other field for the same thing.
func TestRangesNameMistakes(t *testing.T) {
	read := func(job string) error {
		path := filepath.Join(t.TempDir(), "agent.yaml")
		if err := os.WriteFile(path, []byte("jobs: [{cluster: c, "+job+"}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadAgent(path)
		return err
	}
	many := strings.Repeat("1,", MaxRange)
	for _, good := range []string{"name: a, workers: [1]", "name: " + strings.Repeat("n", 59) + ", workers: [1, 1, 7]", "name: a, workers: [" + many + "]"} {
		if err := read(good); err != nil {
			t.Errorf("%.40s: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"name: a, workers: []":                                "jobs[0].workers: the list is empty",
		"name: a, workers: [1], worker: 2":                    "jobs[0].worker: 2, but there is workers, too",
		"name: a, workers: [2, 0]":                            "jobs[0].workers[1]: workers are numbered from 1",
		"name: a, workers: [1], finish: true":                 "jobs[0].finish: true, but a range ends with its owners",
		"name: " + strings.Repeat("n", 60) + ", workers: [1]": "the name of a range has at most 59",
		"name: a, workers: [" + many + "1]":                   "jobs[0].workers: 257 are listed; the limit is 256",
		"name: a, workers: 1":                                 "workers",
		"name: a":                                             "jobs[0].worker: the number of the host's worker",
	} {
		if err := read(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", bad, err, want)
		}
	}
}
