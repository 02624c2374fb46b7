package engine

import (
	"encoding/json"
	"io"
)

// dropsLine is the last line that a peer writes to standard output.
type dropsLine struct {
	Drops map[string]uint64 `json:"drops"`
}

func reportDrops(w io.Writer, drops map[string]uint64) error {
	return json.NewEncoder(w).Encode(dropsLine{drops})
}

// parseDrops returns the drops in a line of output, if it is one that reports them.
func parseDrops(line []byte) (map[string]uint64, bool) {
	var d dropsLine
	if err := json.Unmarshal(line, &d); err != nil || d.Drops == nil {
		return nil, false
	}
	return d.Drops, true
}
