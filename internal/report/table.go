// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Table writes rows below a header, each cell as fmt.Sprint shows it. A column whose cells all
// begin with a digit is aligned to the right. A row may be shorter than the header.
func Table(w io.Writer, header []string, rows [][]any) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault // not upper case, which would change units
	t.Style().Options.DrawBorder = false
	t.Style().Options.SeparateColumns = false

	head := make(table.Row, len(header))
	columns := make([]table.ColumnConfig, len(header))
	for i, name := range header {
		head[i] = name
		align := text.AlignLeft
		if isNumeric(rows, i) {
			align = text.AlignRight
		}
		columns[i] = table.ColumnConfig{Number: i + 1, Align: align, AlignHeader: align}
	}
	t.AppendHeader(head)
	t.SetColumnConfigs(columns)
	for _, row := range rows {
		t.AppendRow(row)
	}
	var out strings.Builder
	for line := range strings.Lines(t.Render()) {
		// The renderer pads the last column with spaces.
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("report: write a table: %w", err)
	}
	return nil
}

// Cell formats a figure for a table. It is empty for 0, which stands for what was not measured.
func Cell(format string, figure float64) string {
	if figure == 0 {
		return ""
	}
	return fmt.Sprintf(format, figure)
}

// isNumeric reports whether all non-empty cells of a column are numbers.
func isNumeric(rows [][]any, column int) bool {
	found := false
	for _, row := range rows {
		if column >= len(row) {
			continue
		}
		cell := strings.TrimLeft(fmt.Sprint(row[column]), "+-")
		if cell == "" {
			continue
		}
		if cell[0] < '0' || cell[0] > '9' {
			return false
		}
		found = true
	}
	return found
}
