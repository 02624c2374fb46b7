// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/libra-ina/libra/telemetry"
)

// Side says of which ends of frames a process has records.
type Side string

// Sides.
const (
	WorkerSide Side = "worker"
	ServerSide Side = "server"
)

// Header is the first line of /records. The others have one record each, and the last is a
// [Trailer], without which a response is not whole.
type Header struct {
	Process string `json:"process"`
	Side    Side   `json:"side"`
	Sample  int    `json:"sample"`
}

// Trailer is the last line of /records.
type Trailer struct {
	Records *int `json:"records"` // lines before it, the first excepted
	Torn    int  `json:"torn"`    // records that were replaced while they were read
}

// serveRecords shows the records that were made after a time, by the process's clock.
func (e *Exporter) serveRecords(w http.ResponseWriter, r *http.Request) {
	if e.cfg.Side == "" {
		http.Error(w, "a switch keeps no records: ask its workers and servers", http.StatusNotFound)
		return
	}
	after := int64(-1)
	if text := r.FormValue("after"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			http.Error(w, fmt.Sprintf("after=%q is no number of nanoseconds", text), http.StatusBadRequest)
			return
		}
		after = n
	}
	var all []telemetry.Record
	torn := 0
	for _, rec := range e.cfg.Recorders() {
		records, t := rec.Records(all)
		all, torn = records, torn+t
	}
	e.torn.Add(uint64(torn))
	w.Header().Set("Content-Type", "application/jsonl")
	out := json.NewEncoder(w)
	_ = out.Encode(Header{Process: e.cfg.Process, Side: e.cfg.Side, Sample: e.cfg.Sample})
	n := 0
	for i := range all {
		if int64(all[i].Time) > after {
			_ = out.Encode(&all[i])
			n++
		}
	}
	_ = out.Encode(Trailer{Records: &n, Torn: torn})
}

// ErrTorn means that a response of /records is not whole.
var ErrTorn = errors.New("the records are not whole")

// ReadRecords reads a response of /records.
func ReadRecords(r io.Reader) (h Header, all []telemetry.Record, torn int, err error) {
	text, err := io.ReadAll(io.LimitReader(r, maxRecords))
	if err != nil {
		return h, nil, 0, fmt.Errorf("%w: %w", ErrTorn, err)
	}
	lines := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	if err := strictly(lines[0], &h); err != nil || h.Side != WorkerSide && h.Side != ServerSide {
		return h, nil, 0, fmt.Errorf("the first line %.100q does not say whose records follow: does another program listen there?", lines[0])
	}
	var end Trailer
	if err := strictly(lines[len(lines)-1], &end); err != nil || end.Records == nil || *end.Records != len(lines)-2 {
		return h, nil, 0, fmt.Errorf("%w: the last of %d lines does not say so: ask again", ErrTorn, len(lines))
	}
	for i, line := range lines[1 : len(lines)-1] {
		var rec telemetry.Record
		if err := strictly(line, &rec); err != nil {
			return h, nil, 0, fmt.Errorf("record %d: %w", i+1, err)
		}
		all = append(all, rec)
	}
	return h, all, end.Torn, nil
}

// maxRecords bounds a response: 16 jobs of an agent have 30 MB of records.
const maxRecords = 256 << 20

// strictly decodes one JSON object, all of whose fields are known.
func strictly(line []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return errors.New("more than one object in a line")
	}
	return nil
}

// Overlap is how far a reader of /records that asks again goes back: records are not read in the
// order of their times.
const Overlap = time.Second
