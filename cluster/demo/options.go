// SPDX-License-Identifier: Apache-2.0

// Package demo runs a whole cluster on this machine: it creates the network, starts the processes
// and monitors them. [Run] trains a model and compares the outcome with the same training in one
// process; [RunPrograms] runs training programs of any language; [RunGLM] trains a linear model.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package demo

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/wire"
)

// Options describe the training and its cluster.
type Options struct {
	Coding

	// Data and Test are libfm or libsvm files; without Data the click log is synthetic. Data
	// without Test is evaluated on its own rows.
	Data, Test string
	// Rows of the synthetic log; 0 means enough for training of a minute or two.
	Rows int
	// The fields of package settings; Batch, Epochs, Staleness, Accumulate, Factors and the
	// numbers that are not whole mean the recipe's values if they are 0. Seed is also that of the
	// synthetic rows and of faults.
	Model, Task, Arithmetic, Optimizer                    string
	Sync                                                  bool
	Harvest                                               time.Duration
	Batch, Epochs, Staleness, Accumulate, Factors, Window int
	LearningRate, InitScale, InitialAccumulator           float64
	Seed                                                  uint64
	// Workers is the number of workers, each in its own process.
	Workers int
	// Servers is the number of parameter servers, each in its own process; 0 means 1.
	Servers int
	// Shares is the number of jobs at the switch among which the hot set is divided; 0 means 1.
	Shares int
	// Switches is the number of switches among which the hot set is divided; 0 means 1.
	Switches int
	// Tree lets the first of several switches harvest the others, in the place of the server.
	Tree bool
	// Backend is cluster.BackendAFXDP or cluster.BackendUDP.
	Backend string
	// Plane is the aggregator's data plane: empty for the backend's, or cluster.PlaneP4 for bmv2's
	// simple_switch_grpc, which must be on the PATH.
	Plane string
	// LaneAligned makes workers send lane-aligned frames of one stripe, as a P4 switch requires.
	LaneAligned bool
	// HotRows is the number of hot rows; 0 means as many as the scalars of the paper's largest hot
	// set suffice for.
	HotRows int
	// HotRate is the share of the rows that are sampled for the hot set; 0 means [node.DefaultRate],
	// or all if that gives too few.
	HotRate float64
	// AutoHot, in place of HotRows, decides by cost how many rows are hot, for workers that push half
	// a million rows a second each.
	AutoHot bool
	// Faults are injected at the workers.
	Faults cluster.Faults
	// Capture, if set, is a folder for the frames that every worker and the server send and
	// receive.
	Capture string
	// Baselines are the baselines to compare the training with.
	Baselines []string
	// Out, if set, is an existing folder for the hot set, the checkpoint and the result, which then
	// has evaluations after each epoch, unless there are several servers: their checkpoints become
	// one.
	Out string

	// Stderr receives the progress.
	Stderr io.Writer
	// Logs, if not nil, receives the logs of the processes.
	Logs io.Writer
	Log  *slog.Logger
}

// Arithmetics are the values of Options.Arithmetic.
func Arithmetics() []string {
	return []string{aggregator.Exact.String(), aggregator.LUT.String(), aggregator.Fixed.String()}
}

// Validate reports the first invalid option.
func (o Options) Validate() error {
	switch {
	case o.Workers < 1 || o.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: it must be from 1 to %d", o.Workers, maxWorkers)
	case o.Servers < 0 || o.Servers > wire.MaxServers:
		return fmt.Errorf("--servers %d: it must be from 1 to %d", o.Servers, wire.MaxServers)
	case o.Shares < 0 || o.Shares > share.Max:
		return fmt.Errorf("--shares %d: it must be from 1 to %d", o.Shares, share.Max)
	case o.Switches > 1 && o.Shares > 1:
		return fmt.Errorf("--shares %d: with several --switches each has one share, so leave one of them out", o.Shares)
	case o.Switches > 1 && o.Plane == cluster.PlaneP4:
		return fmt.Errorf("--switches %d: a P4 switch has no others, so leave it out, or choose another --plane", o.Switches)
	case o.Tree && o.Switches < 2:
		return errors.New("--tree: one switch has no children: give several --switches, or leave it out")
	case o.Tree && o.Arithmetic == aggregator.LUT.String():
		return fmt.Errorf("--tree: a parent adds sums of exact or fixed arithmetic: leave it out, or choose another --arithmetic than %s", o.Arithmetic)
	case o.Epochs < 0:
		return fmt.Errorf("--epochs %d: at least 1 is required", o.Epochs)
	case !slices.Contains(data.Tasks(), o.Task):
		return fmt.Errorf("--task %q is none of %v", o.Task, data.Tasks())
	case !slices.Contains(Arithmetics(), o.Arithmetic):
		return fmt.Errorf("--arithmetic %q is none of %v", o.Arithmetic, Arithmetics())
	case o.Harvest < 0:
		return fmt.Errorf("--harvest %v: the time must be positive", o.Harvest)
	case o.Harvest != 0 && o.Sync:
		return fmt.Errorf("--harvest %v: with --sync every step is harvested, so leave one of them out", o.Harvest)
	case o.Model == "lr" && o.Factors != 0:
		return fmt.Errorf("--factors %d: model lr has none, so leave it out", o.Factors)
	case o.Factors < 0 || o.Factors > train.MaxFactors:
		return fmt.Errorf("--factors %d: it must be from 1 to %d", o.Factors, train.MaxFactors)
	case o.Window < 0:
		return fmt.Errorf("--window %d: at least 1 is required", o.Window)
	case !(o.HotRate >= 0 && o.HotRate <= 1):
		return fmt.Errorf("--hot-rate %g: it must be a share of the rows, from 0 to 1", o.HotRate)
	case o.HotRows < 0:
		return fmt.Errorf("--hot-rows %d: at least 1 is required", o.HotRows)
	case o.AutoHot && o.Plane == cluster.PlaneP4:
		return errors.New("--hot-rows auto: it goes by the costs of an aggregator in XDP, so give a number for a P4 switch")
	case o.Plane == cluster.PlaneP4 && o.HotRows > packer.PageSlots/o.dim():
		return fmt.Errorf("--hot-rows %d: a P4 switch takes %d scalars of a job, which are %d rows of %d", o.HotRows,
			packer.PageSlots, packer.PageSlots/o.dim(), o.dim())
	case o.HotRows > packer.MaxHotRows(o.dim()):
		return fmt.Errorf("--hot-rows %d: a job has at most %d rows of %d scalars", o.HotRows, packer.MaxHotRows(o.dim()),
			o.dim())
	case o.Optimizer != ps.Adagrad.String() && o.Optimizer != ps.SGD.String():
		return fmt.Errorf("--optimizer %q is neither adagrad nor sgd", o.Optimizer)
	case !isRate(o.LearningRate):
		return fmt.Errorf("--learning-rate %g: it must be above 0, and a float32", o.LearningRate)
	case !isRate(o.InitScale):
		return fmt.Errorf("--init-scale %g: it must be above 0, and a float32", o.InitScale)
	case o.InitScale != 0 && o.Model == "lr":
		return fmt.Errorf("--init-scale %g: model lr begins with zeros, so leave it out, or give --model fm", o.InitScale)
	case !isRate(o.InitialAccumulator):
		return fmt.Errorf("--initial-accumulator %g: it must be above 0, and a float32", o.InitialAccumulator)
	case o.InitialAccumulator != 0 && o.Optimizer != ps.Adagrad.String():
		return fmt.Errorf("--initial-accumulator %g: optimizer %s has none, so leave it out, or give --optimizer adagrad",
			o.InitialAccumulator, o.Optimizer)
	case o.Accumulate < 0:
		return fmt.Errorf("--accumulate %d: at least 1 is required", o.Accumulate)
	case o.Accumulate != 0 && o.Sync:
		return fmt.Errorf("--accumulate %d: with --sync every step has its gradients, so leave one of them out", o.Accumulate)
	case o.Staleness < 0:
		return fmt.Errorf("--staleness %d: at least 1 is required", o.Staleness)
	case o.Staleness != 0 && o.Sync:
		return fmt.Errorf("--staleness %d: with --sync no worker is ahead of the weights, so leave one of them out",
			o.Staleness)
	case o.Rows < 0 || o.Rows > 0 && o.Data != "":
		return fmt.Errorf("--rows %d: a positive number, for the synthetic log only, so without --data", o.Rows)
	case o.Test != "" && o.Data == "":
		return fmt.Errorf("--test %s without a training file: give --data too", o.Test)
	case slices.ContainsFunc(o.Baselines, func(b string) bool { return !slices.Contains(Baselines(), b) }):
		return fmt.Errorf("--baseline %q: each is one of %s", o.Baselines, strings.Join(Baselines(), ", "))
	case o.Backend != cluster.BackendAFXDP && o.Backend != cluster.BackendUDP:
		return fmt.Errorf("--backend %q is neither %q nor %q", o.Backend, cluster.BackendAFXDP, cluster.BackendUDP)
	case o.Plane != "" && o.Plane != cluster.PlaneP4:
		return fmt.Errorf("--plane %q is not %q: leave it out for the backend's", o.Plane, cluster.PlaneP4)
	case o.Plane == cluster.PlaneP4 && o.Backend != cluster.BackendAFXDP:
		return fmt.Errorf("--plane %s with --backend %s: hosts with the %s backend alone reach a P4 switch", o.Plane,
			o.Backend, cluster.BackendAFXDP)
	}
	if err := errors.Join(o.checkCoding(), checkSwitches(o.Switches)); err != nil {
		return err
	}
	return checkFaults(o.Faults)
}

// checkFaults names the flag of a fault that cannot be: the fields have the names of the flags.
func checkFaults(f cluster.Faults) error {
	if err := f.Validate(); err != nil {
		return errors.New("--" + strings.TrimPrefix(err.Error(), "faults."))
	}
	return nil
}

// isRate reports whether a number is left out or a positive float32.
func isRate(x float64) bool {
	return x == 0 || float32(x) > 0 && !math.IsInf(float64(float32(x)), 0)
}

// dim is the number of scalars of a row.
func (o Options) dim() int {
	if o.Model == "lr" {
		return 1
	}
	return 1 + o.recipe().Factors
}

// LongLog is the number of rows of a synthetic log from which on weights may lack many
// mini-batches, because each is a small part of it.
const LongLog = 500_000

// recipe returns the hyper-parameters for the training, with the user's values where they are set.
func (o Options) recipe() train.Recipe {
	r := train.SmallData
	if o.Data == "" {
		r = train.ClickLog
		if cmp.Or(o.Rows, SyntheticRows) < LongLog {
			r.Staleness, r.Accumulate = train.SmallData.Staleness, train.SmallData.Accumulate
		}
	}
	r.Factors = cmp.Or(o.Factors, r.Factors)
	r.Epochs = cmp.Or(o.Epochs, r.Epochs)
	r.Batch = cmp.Or(o.Batch, r.Batch)
	r.Staleness = cmp.Or(o.Staleness, r.Staleness)
	r.Accumulate = cmp.Or(o.Accumulate, r.Accumulate)
	if o.Sync {
		r.Staleness, r.Accumulate = 0, 0
	}
	r.Optimizer.LearningRate = cmp.Or(float32(o.LearningRate), r.Optimizer.LearningRate)
	r.Optimizer.InitialAccumulator = cmp.Or(float32(o.InitialAccumulator), r.Optimizer.InitialAccumulator)
	r.Scale = cmp.Or(float32(o.InitScale), r.Scale)
	return r
}

// The synthetic click log is like the paper's search engine (§3.1):
// nine million parameters (2^20 features with a weight and eight factors each),
// the hottest of which take 70 % of the updates. With this many rows the demo
// takes one to two minutes on two cores.
const (
	SyntheticRows  = 1_800_000
	SyntheticShare = 0.7
	heldOutRows    = 50_000
)

// maxWorkers limits the demo to a size for one machine.
const maxWorkers = 64

// Result is the outcome of a demo, and its JSON object.
type Result struct {
	Backend    string `json:"backend"`
	Plane      string `json:"plane"`
	Data       string `json:"data"`
	Model      string `json:"model"`
	Task       string `json:"task"`
	Arithmetic string `json:"arithmetic"`
	Workers    int    `json:"workers"`
	Servers    int    `json:"servers"`
	Shares     int    `json:"shares"` // of the hot set
	Switches   int    `json:"switches"`
	Epochs     int    `json:"epochs"`
	Sync       bool   `json:"sync"`

	// Of the model and its optimiser, as in the cluster file.
	Batch              int     `json:"batch"`
	Factors            int     `json:"factors,omitempty"`
	Optimizer          string  `json:"optimizer"`
	LearningRate       float32 `json:"learning_rate"`
	InitialAccumulator float32 `json:"initial_accumulator,omitempty"`
	InitScale          float32 `json:"init_scale,omitempty"`
	Seed               uint64  `json:"seed"`

	CodecBound int `json:"codec_bound,omitempty"`
	CodecScale int `json:"codec_scale,omitempty"`

	Outcome
	// OneProcess and ServerOnly are the baselines, if requested.
	OneProcess *Outcome `json:"one_process,omitempty"`
	ServerOnly *Outcome `json:"server_only,omitempty"`

	WeightsSHA256 string `json:"weights_sha256"`
	// ReferenceSHA256, of one process, is given only with Sync and exact arithmetic, with which
	// both are equal.
	ReferenceSHA256 string `json:"reference_sha256,omitempty"`

	Samples        uint64  `json:"samples"`
	Pairs          uint64  `json:"pairs"` // pushed gradients
	PairsPerSecond float64 `json:"pairs_per_s"`
	HotPairs       uint64  `json:"hot_pairs"`
	HotShare       float64 `json:"hot_share"` // of the pairs, summed in the network
	// AddedPairs are gradients of hot rows that workers summed before they pushed. Pairs does not
	// include them.
	AddedPairs uint64 `json:"added_pairs"`
	// ColdBytes are the payloads of cold rows with their keys, each sent once, and SavedBytes is what
	// the codes in them are shorter than floats.
	ColdBytes       uint64  `json:"cold_bytes"`
	SavedBytes      int64   `json:"saved_bytes"`
	HotRows         int     `json:"hot_rows"`
	Frames          uint64  `json:"frames"` // from workers, each counted once
	FramesPerSecond float64 `json:"frames_per_s"`
	Retransmissions uint64  `json:"retransmissions"`
	// FramesSaved is the number of hot frames that the server did not have to receive, less the
	// messages with their sums.
	FramesSaved int64  `json:"frames_spared"`
	Steps       uint64 `json:"steps"`
	// StepSeconds is the time of all steps of the slowest worker: without the start of its process and
	// its admission, which Seconds has.
	StepSeconds float64 `json:"steps_s"`

	FaultsDropped    uint64 `json:"faults_dropped"`
	FaultsDuplicated uint64 `json:"faults_duplicated"`
	FaultsReordered  uint64 `json:"faults_reordered"`
}

// startLimit is how long a process may take to become ready. A server of a job with lut arithmetic
// on a P4 switch waits until the switch has its tables.
const startLimit = 3 * time.Minute
