// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/libra-ina/libra/aggregator"
)

// Agent is the configuration file of a host's agent.
type Agent struct {
	// Socket is the path of the agent's socket for clients; "" means /run/libra/agent.sock.
	Socket string     `yaml:"socket,omitempty"`
	Jobs   []AgentJob `yaml:"jobs"`
	// Record, if set, is a folder for traces of what clients push (package trace). It is not in files:
	// 'libra run' completes such a trace.
	Record string `yaml:"-"`
}

// AgentJob is a job in which an agent's host takes part.
type AgentJob struct {
	// Name is the job's name for clients.
	Name string `yaml:"name"`
	// Cluster is the job's cluster file, in which the host is Worker.
	Cluster string `yaml:"cluster"`
	Worker  uint16 `yaml:"worker,omitempty"`
	// Workers, instead of Worker, make this a range of jobs without a parameter server, one for each
	// of them: with the numbers from job.id of the cluster file on, and the names Name/0, Name/1 and
	// so on for clients. A worker may be in the list more than once with the udp backend; its later
	// links have the ports after the first's.
	Workers []uint16 `yaml:"workers,omitempty,flow"`
	// Users and Groups may use the job: names or numbers. The agent's own user always may.
	Users  []string `yaml:"users,omitempty,flow"`
	Groups []string `yaml:"groups,omitempty,flow"`
	// Limits of the job and of each of its clients; 0 means package agent's defaults.
	Clients        int `yaml:"clients,omitempty"`
	ClientsPerUser int `yaml:"clients_per_user,omitempty"`
	MemoryMiB      int `yaml:"memory_mib,omitempty"`
	PreparedMiB    int `yaml:"prepared_mib,omitempty"`
	// Separate sends the pushes of the clients separately, instead of adding them up first.
	Separate bool `yaml:"separate,omitempty"`
	// Finish makes the end of the agent the end of the host's part in the job: it does not come back.
	Finish bool `yaml:"finish,omitempty"`
}

// ReadAgent reads and checks an agent's file. Errors name the file, the field and its line.
func ReadAgent(path string) (*Agent, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("agent configuration: %w", err)
	}
	var a Agent
	written, err := decode(data, &a, "an agent")
	if err == nil {
		err = located(a.validate(written), written)
	}
	if err != nil {
		return nil, fmt.Errorf("agent configuration %s: %w", path, err)
	}
	return &a, nil
}

func (a *Agent) validate(written *yaml.Node) error {
	var v mistakes
	if len(a.Jobs) == 0 {
		v.addMistake("jobs: at least one job is required")
	}
	if a.Socket == "" && given(written, "socket") != nil {
		v.addMistake("socket: %q is no path: leave the field out for the default, or give one", a.Socket)
	}
	names, files := map[string]bool{}, map[string]bool{}
	for i, j := range a.Jobs {
		at := fmt.Sprintf("jobs[%d].", i)
		v.addName(at+"name", j.Name, names)
		switch {
		case j.Cluster == "":
			v.addMistake("%scluster: the path of the job's cluster file is required", at)
		case files[j.Cluster]:
			v.addMistake("%scluster: %s is used twice: a host takes part in a job once", at, j.Cluster)
		}
		files[j.Cluster] = true
		switch n := len(j.Workers); {
		case n == 0 && given(written, at+"workers") != nil:
			v.addMistake("%sworkers: the list is empty: give the number of a worker of the cluster file for each job of the range", at)
		case n == 0 && j.Worker == 0:
			v.addMistake("%sworker: the number of the host's worker in the cluster file is required", at)
		case n > 0:
			j.validateRange(at, &v)
		}
		for _, limit := range []struct {
			field string
			value int
		}{{"clients", j.Clients}, {"clients_per_user", j.ClientsPerUser}, {"memory_mib", j.MemoryMiB},
			{"prepared_mib", j.PreparedMiB}} {
			const most = 1 << 20
			if given(written, at+limit.field) != nil && (limit.value < 1 || limit.value > most) {
				v.addMistake("%s%s: %d is not from 1 to %d: leave the field out for the default, or give another", at, limit.field,
					limit.value, most)
			}
		}
		if _, err := j.UserIDs(); err != nil {
			v.addMistake("%susers: %w", at, err)
		}
		if _, err := j.GroupIDs(); err != nil {
			v.addMistake("%sgroups: %w", at, err)
		}
	}
	return errors.Join(v.errs...)
}

// validateRange checks what is different in a range of jobs.
func (j *AgentJob) validateRange(at string, v *mistakes) {
	if j.Worker != 0 {
		v.addMistake("%sworker: %d, but there is workers, too: leave one of them out", at, j.Worker)
	}
	if n := len(j.Workers); n > MaxRange {
		v.addMistake("%sworkers: %d are listed; the limit is %d, as many as there are jobs", at, n, MaxRange)
	}
	if i := slices.Index(j.Workers, 0); i >= 0 {
		v.addMistake("%sworkers[%d]: workers are numbered from 1: give the number of one in the cluster file", at, i)
	}
	if longest := 63 - len("/255"); len(j.Name) > longest {
		v.addMistake("%sname: %q is %d bytes long: the name of a range has at most %d, since clients add the number of a job", at,
			j.Name, len(j.Name), longest)
	}
	if j.Finish {
		v.addMistake("%sfinish: true, but a range ends with its owners: leave it out", at)
	}
}

// MaxRange is the largest number of jobs of a range.
const MaxRange = aggregator.MaxJobs

// UserIDs returns the numbers of the users.
func (j *AgentJob) UserIDs() ([]uint32, error) {
	return numbers(j.Users, func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
}

// GroupIDs returns the numbers of the groups.
func (j *AgentJob) GroupIDs() ([]uint32, error) {
	return numbers(j.Groups, func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
}

// numbers returns the ids that texts give by number or by name.
func numbers(texts []string, lookUp func(name string) (string, error)) (ids []uint32, err error) {
	for _, text := range texts {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			found, unknown := lookUp(text)
			if unknown != nil {
				return nil, unknown
			}
			if id, err = strconv.ParseUint(found, 10, 32); err != nil {
				return nil, err
			}
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}
