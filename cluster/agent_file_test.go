// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An agent's file is taken to the ends of its ranges; beyond them, the field is named.
func TestAgentFileNamesMistakes(t *testing.T) {
	read := func(jobs string) error {
		path := filepath.Join(t.TempDir(), "agent.yaml")
		jobs, more, _ := strings.Cut(jobs, ";")
		if err := os.WriteFile(path, []byte("jobs: ["+jobs+"]\n"+more), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadAgent(path)
		return err
	}
	job := func(name, more string) string { return fmt.Sprintf("{name: %s, cluster: c, worker: 1%s}", name, more) }
	for _, good := range []string{job(strings.Repeat("n", 63), ""), job("a", ", clients: null"), job("a", "") + ";socket: ", job("a", ", clients: 1048576, memory_mib: 1"), job("a", ", finish: true")} {
		if err := read(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, field := range map[string]string{
		job(strings.Repeat("n", 64), ""):            "jobs[0].name",
		job("a", "") + "," + job("b", ""):           "jobs[1].cluster: c is used twice",
		job("a", "") + ", null":                     "jobs[1]: it is null: remove it, or give a mapping",
		job("a", "") + `;socket: ""`:                `line 2: socket: "" is no path`,
		job("a", ", users: [~]"):                    "jobs[0].users[0]: it is null",
		"{name: a, cluster: c}":                     "jobs[0].worker",
		"{name: a, cluster: c, worker: 0}":          "jobs[0].worker",
		job("a", ", clients: 1048577"):              "jobs[0].clients: 1048577",
		job("a", ", prepared_mib: 0"):               "jobs[0].prepared_mib: 0",
		job("a", ", finish: 1"):                     "finish",
		job("a", ", clients_per_user: -1"):          "jobs[0].clients_per_user: -1",
		job("a", "") + "," + "{name: a, worker: 1}": "jobs[1].name",
	} {
		if err := read(bad); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v, want %s", bad, err, field)
		}
	}
}

// A zero is a zero whichever way it is written.
func TestNegativeZeroIsNoDefault(t *testing.T) {
	for _, zero := range []string{"0", "-0", "-0.0", "0e5"} {
		_, err := parse([]byte("model: {learning_rate: " + zero + "}"))
		if err == nil || !strings.Contains(err.Error(), "model.learning_rate: \""+zero+"\" is not a valid value") {
			t.Errorf("%s: %v", zero, err)
		}
	}
}
