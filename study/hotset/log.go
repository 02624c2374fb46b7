// SPDX-License-Identifier: Apache-2.0

package hotset

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/train/data"
)

// Log describes a training log.
type Log struct {
	Name       string `json:"name"`
	Rows       int    `json:"rows"`
	Updates    uint64 `json:"updates"`
	Parameters int    `json:"parameters"`
	// Top30K is the share of updates that the 30,000 hottest parameters take.
	Top30K float64 `json:"top_30k"`
}

// trainingLog holds which parameters each row of a log updates.
type trainingLog struct {
	name string
	keys []uint64
	ends []int // of each row in keys, after a 0
	full heat.Ranking
}

func (l *trainingLog) append(keys ...uint64) {
	l.keys = append(l.keys, keys...)
	l.ends = append(l.ends, len(l.keys))
}

func (l *trainingLog) rows() int { return len(l.ends) - 1 }

func (l *trainingLog) row(i int) []uint64 { return l.keys[l.ends[i]:l.ends[i+1]] }

// count ranks the parameters of the rows that keep accepts.
func (l *trainingLog) count(keep func(row uint64) bool) heat.Ranking {
	var counter heat.Exact
	for i := range l.rows() {
		if keep(uint64(i)) {
			for _, key := range l.row(i) {
				counter.Add(key)
			}
		}
	}
	return counter.Ranking()
}

func (l *trainingLog) describe() Log {
	var top uint64
	for _, c := range l.full.Counts[:min(topParameters, len(l.full.Counts))] {
		top += c.Updates
	}
	return Log{
		Name: l.name, Rows: l.rows(), Updates: l.full.Updates, Parameters: len(l.full.Counts),
		Top30K: float64(top) / float64(l.full.Updates),
	}
}

func logName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	return name
}

func load(c Config) ([]*trainingLog, error) {
	var logs []*trainingLog
	named := map[string]int{}
	add := func(l *trainingLog, err error) error {
		if err != nil {
			return err
		}
		if named[l.name]++; named[l.name] > 1 {
			l.name += fmt.Sprintf(" (%d)", named[l.name])
		}
		l.full = l.count(func(uint64) bool { return true })
		if l.full.Updates == 0 {
			return fmt.Errorf("hotset study: no row of %s updates a parameter", l.name)
		}
		logs = append(logs, l)
		return nil
	}
	for _, path := range c.LibFM {
		if err := add(readLibFM(path)); err != nil {
			return nil, err
		}
	}
	for _, path := range c.Text {
		if err := add(readText(path)); err != nil {
			return nil, err
		}
	}
	for _, share := range c.HotShares {
		if err := add(synthesise(c, share)); err != nil {
			return nil, err
		}
	}
	return logs, nil
}

func readLibFM(path string) (*trainingLog, error) {
	src, err := data.OpenFile(path, data.Regression, data.Shard{})
	if err != nil {
		return nil, err
	}
	l, err := readSource(logName(path), src)
	return l, errors.Join(err, src.Close())
}

func synthesise(c Config, share float64) (*trainingLog, error) {
	src, err := data.NewSynthetic(data.SyntheticConfig{
		Rows: c.SyntheticRows, Hot: topParameters, HotShare: share, Seed: c.Seed, Spread: true,
	}, data.Shard{})
	if err != nil {
		return nil, err
	}
	return readSource(fmt.Sprintf("synthetic %.0f %%", 100*share), src)
}

func readSource(name string, src data.Source) (*trainingLog, error) {
	l := &trainingLog{name: name, ends: []int{0}}
	var s data.Sample
	for {
		switch err := src.Next(&s); {
		case errors.Is(err, io.EOF):
			return l, nil
		case err != nil:
			return nil, err
		}
		l.append(s.Keys...)
	}
}

// readText numbers the words of a text in the order in which they first occur.
func readText(path string) (*trainingLog, error) {
	f, err := file.Open(path)
	if err != nil {
		return nil, fmt.Errorf("hotset study: %w", err)
	}
	defer f.Close()
	in, err := data.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("hotset study: %s: %w", path, err)
	}
	l := &trainingLog{name: logName(path), ends: []int{0}}
	numbers := map[string]uint64{}
	var row []uint64
	for lines := 1; ; lines++ {
		line, err := in.ReadString('\n') // of any length; the last may lack its end
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("hotset study: %s: line %d: %w", path, lines, err)
		}
		row = row[:0]
		for word := range strings.FieldsSeq(line) {
			n, ok := numbers[word]
			if !ok {
				n = uint64(len(numbers))
				numbers[strings.Clone(word)] = n // not the whole line
			}
			row = append(row, n)
		}
		if len(row) > 0 {
			l.append(row...)
		}
		if errors.Is(err, io.EOF) {
			return l, nil
		}
	}
}
