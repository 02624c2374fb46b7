package arithmetic

import "github.com/libra-ina/libra/lut"

// Arithmetic names a way to add.
type Arithmetic string

// The arithmetics of the study.
const (
	// Fixed is int32 with a negotiated scale, SwitchML's (internal/scaled).
	Fixed Arithmetic = "fixed"
	// LUT is the paper's table lookup (lut).
	LUT Arithmetic = "lut"
	// Float32 is what a processor does, correctly rounded.
	Float32 Arithmetic = "float32"
	// Exact is int64 fixed point (internal/fixedpoint).
	Exact Arithmetic = "exact"
)

var arithmetics = []Arithmetic{Fixed, LUT, Float32, Exact}

// Report is the outcome of a study. It marshals to one JSON object.
type Report struct {
	DataSets  []DataSet   `json:"data_sets"`
	Precision []Precision `json:"precision"`
	// Foreign is what Fixed makes of uniform numbers with the scale of a median
	// iteration of the training.
	Foreign  Precision  `json:"precision_of_foreign_scale"`
	LongSums []LongSum  `json:"long_sums"`
	Trials   int        `json:"trials"` // long sums of each length
	Memory   []Memory   `json:"memory"`
	Senders  int        `json:"senders"`
	Tables   lut.Budget `json:"tables"`
	Bound    lut.Bound  `json:"bound"`
	// Advice says what the figures mean for the choice of an arithmetic.
	Advice string `json:"advice"`
}

// DataSet describes numbers that were added. Least, Median and Largest are
// magnitudes.
type DataSet struct {
	Name    string  `json:"name"`
	Pairs   int     `json:"pairs"`
	Least   float64 `json:"least"`
	Median  float64 `json:"median"`
	Largest float64 `json:"largest"`
	// Opposite is the share of pairs of opposite signs.
	Opposite float64 `json:"opposite_signs"`
}

// Precision is a row of the paper's Table 2. Shares are between 0 and 1.
type Precision struct {
	Arithmetic Arithmetic `json:"arithmetic"`
	DataSet    string     `json:"data_set"`
	Median     float64    `json:"median"`
	Average    float64    `json:"average"`
	// Worst is the lowest precision of all pairs.
	Worst float64 `json:"worst"`
	// Paper has the paper's figures, if it has any.
	Paper *PaperPrecision `json:"paper,omitempty"`
}

// PaperPrecision is what the paper has in Table 2.
type PaperPrecision struct {
	Median  float64 `json:"median"`
	Average float64 `json:"average"`
}

// LongSum is the relative error of sums of so many numbers of a data set: |got -
// true| / |true|, over several sums; 1 where a sum should be 0 and is not.
type LongSum struct {
	DataSet    string     `json:"data_set"`
	Arithmetic Arithmetic `json:"arithmetic"`
	Additions  int        `json:"additions"`
	Median     float64    `json:"median"`
	Largest    float64    `json:"largest"`
}

// Memory is the memory of an aggregator with one job of 30,000 hot parameters, in
// bytes (libra.txt §5.7).
type Memory struct {
	Name string `json:"name"`
	// Slots is one bank of sums. Tables are those of table lookup. Control is
	// the rest: duplicate filter, admission and counters.
	Slots   int `json:"slots"`
	Tables  int `json:"tables"`
	Control int `json:"control"`
	// Spare is the second bank, which is harvested while the first one fills.
	Spare int `json:"spare_bank"`
}

// Total returns the sum of all.
func (m Memory) Total() int { return m.Slots + m.Tables + m.Control + m.Spare }
